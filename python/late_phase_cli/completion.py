"""Completion for bash, from argparse's commands and the C++ program's own flags."""

from late_phase_cli import locations, program_flags

SCRIPT = r"""# Completion of commands, flags and their words, made by `COMMAND completion bash`.
_latephase() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command='' words=''
  ((COMP_CWORD < 2)) || command=${COMP_WORDS[1]}
  case $command in train | sweep | bench) ((COMP_CWORD < 3)) || command+=" ${COMP_WORDS[2]}" ;; esac
  case "$command $previous" in
VALUES
    *) case $command in
FLAGS
    esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))  # if nothing matches, bash completes files
}
complete -o default -F _latephase latephase
"""


def parser_flags(parser):
    return {
        flag: list(map(str, action.choices or ()))
        for action in parser._actions
        for flag in action.option_strings
        if flag.startswith("--")
    }


def script(parser):
    """The text of the script. `parser`: main.make_parser()."""
    from late_phase_cli import main

    flags = {
        "": dict.fromkeys(parser.commands, ())
    }  # command -> flags and other words -> words that may follow
    flags |= {name: parser_flags(one) for name, one in parser.commands.items()}
    flags |= {command: program_flags.words(command) for command in program_flags.recorded()}
    for name in main.TRAINED:
        flags[f"sweep {name}"] = flags[f"train {name}"] | parser_flags(parser.commands["sweep"])
    flags["train"] = flags["sweep"] = dict.fromkeys(main.TRAINED, ())
    flags["bench"] = dict.fromkeys(main.BENCHMARKS, ())
    flags["completion"] = {"bash": ()}
    values = [
        f'    "{command} {flag}") words="{" ".join(words)}" ;;'
        for command, its in flags.items()
        for flag, words in its.items()
        if words
    ]
    cases = [f'      "{command}") words="{" ".join(its)}" ;;' for command, its in flags.items()]
    return (
        SCRIPT.replace("COMMAND", locations.command())
        .replace("VALUES", "\n".join(values))
        .replace("FLAGS", "\n".join(cases))
    )
