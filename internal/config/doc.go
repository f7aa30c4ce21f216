// Package config is the picker process's configuration: one YAML file, one
// struct, one [Default].
//
// Invariant: a file that [Load] accepts has no unknown key, no value of a wrong
// type and none out of bounds; one that it refuses is answered with every fault
// at once, each with its line and dotted path. Each package owns the options
// that it reads; this one composes and decodes them.
//
// Deployment facts (addresses to listen on, the pool's secret) are flags and
// KVLANE_* variables of the commands, not keys of the file. Nothing reloads
// while the process runs.
package config
