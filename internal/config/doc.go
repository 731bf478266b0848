// Package config turns what the user wrote into one validated value.
//
// It owns the list of settings (settings.go), the four ways in which a setting can be
// given, and the words in which a mistake is reported. Later ways win: defaults, the YAML
// file, the environment (FORWARDER_ and the path in capitals), flags.
//
// Rules that it enforces:
//
//   - All problems are reported at once, each as a *FieldError that names the setting,
//     where it was given, what is wrong and what to write instead.
//   - Nothing falls back quietly. A setting that is given is judged as it is given: empty
//     is empty, zero is zero, a number without a unit is an error, and so is a name that is
//     not a setting, in the file and in the environment.
//   - A setting that would weaken delivery is refused, with the reason.
//   - Secrets are of type Secret, which prints as something else in every format. Problems
//     never repeat a secret, nor the value of a name that is not known.
//
// It reads files through the function that it is given, and connects to nothing. It knows
// neither the database driver nor the Kafka client: cmd/forwarder fills their configs.
package config
