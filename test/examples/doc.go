// Package examples builds the programs in its folders and runs them: what they show
// is what works.
package examples
