// Package lint holds rules about this repository that no linter knows, as
// tests: which package may import which. It has no code of its own.
package lint
