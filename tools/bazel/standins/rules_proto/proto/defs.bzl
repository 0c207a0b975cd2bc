"""Stand-in for rules_proto: the rules that Bazel's own BUILD files load are the native ones."""

proto_lang_toolchain = native.proto_lang_toolchain
proto_library = native.proto_library
