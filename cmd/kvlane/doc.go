// Command kvlane is every part of the system in one binary: the picker, the
// agent, the simulated engine and the tools around them. `kvlane help` lists
// the subcommands.
//
// It only wires: flags become values, values are passed to the packages that do
// the work. Flags and KVLANE_* variables hold deployment facts; everything else
// of the picker is in one file (internal/config).
package main
