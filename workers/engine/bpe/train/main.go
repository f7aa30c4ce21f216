// Command train learns the vocabulary of package bpe and prints its merges:
//
//	go run ./workers/engine/bpe/train -goroot "$(go env GOROOT)" -license LICENSE > workers/engine/bpe/merges.txt
//
// Its text is the doc comments of Go's standard library (every .go file under
// GOROOT/src but tests, vendored code and testdata) and the licence file of
// this repository. The same Go release gives the same bytes; NOTICE in package
// bpe's folder says which release was used. Doc comments are prose about
// programs with some code in it, which is close enough to what people send to
// language models to give words, word pieces, digits and indentation the
// lengths they have in a real vocabulary.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvlane/kvlane/workers/engine/bpe"
)

// merges is the vocabulary size, 8,192, less the 256 bytes and the 3 special
// tokens.
const merges = 8192 - 256 - 3

func main() {
	goroot := flag.String("goroot", "", "root of the Go distribution whose doc comments to read")
	license := flag.String("license", "LICENSE", "licence file to read as well")
	flag.Parse()
	if err := run(*goroot, *license, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "train:", err)
		os.Exit(1)
	}
}

func run(goroot, license string, out io.Writer) error {
	counts := make(map[string]int)
	count := func(text string) {
		for word := range bpe.Split(text) {
			counts[word]++
		}
	}
	text, err := os.ReadFile(license)
	if err != nil {
		return fmt.Errorf("read the licence: %w", err)
	}
	count(string(text))
	if err := docComments(filepath.Join(goroot, "src"), count); err != nil {
		return err
	}
	w := bufio.NewWriter(out)
	var line []byte
	for _, m := range learn(counts, merges) {
		line = bpe.AppendMerge(line[:0], m[0], m[1])
		if _, err := w.Write(line); err != nil {
			return fmt.Errorf("write merges: %w", err)
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write merges: %w", err)
	}
	return nil
}

// docComments calls use with the text of each doc comment under dir.
func docComments(dir string, use func(string)) error {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if name == "testdata" || name == "vendor" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("parse: %w", err)
		}
		fileComments(file, use)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read doc comments: %w", err)
	}
	return nil
}

func fileComments(file *ast.File, use func(string)) {
	doc := func(g *ast.CommentGroup) {
		if text := g.Text(); text != "" {
			use(text)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.File:
			doc(n.Doc)
		case *ast.FuncDecl:
			doc(n.Doc)
			return false
		case *ast.GenDecl:
			doc(n.Doc)
		case *ast.TypeSpec:
			doc(n.Doc)
		case *ast.ValueSpec:
			doc(n.Doc)
		case *ast.Field:
			doc(n.Doc)
		}
		return true
	})
}
