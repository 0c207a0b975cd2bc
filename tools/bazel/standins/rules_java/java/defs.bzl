"""Stand-in for rules_java: the rules that Bazel's own BUILD files load are the native ones."""

java_binary = native.java_binary
java_import = native.java_import
java_runtime = native.java_runtime
java_toolchain = native.java_toolchain
