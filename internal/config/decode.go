package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// key is one key of the file: a value, a section with keys of its own, or a list of
// such sections.
type key struct {
	name string
	set  func(*yaml.Node) error // nil for a section and a list
	keys []key                  // of a list: those of one item
	// items reads a list; nil for what is none.
	items func(d *decoder, path string, n *yaml.Node)
}

func section(name string, keys ...key) key { return key{name: name, keys: keys} }

// value reads a key into p.
func value[T bool | int | int64 | float64 | ~string | time.Duration](name string, p *T) key {
	return key{name: name, set: func(n *yaml.Node) error {
		v := *p
		if n.Tag == "!!null" || n.Kind != yaml.ScalarNode || n.Decode(&v) != nil {
			return fmt.Errorf("want %s, got %s", kindOf(v), show(n))
		}
		*p = v
		return nil
	}}
}

// texts reads a list of texts into p.
func texts(name string, p *[]string) key {
	return key{name: name, set: func(n *yaml.Node) error {
		var list []string
		if n.Kind != yaml.SequenceNode || n.Decode(&list) != nil {
			return fmt.Errorf("want a list of texts, got %s", show(n))
		}
		*p = list
		return nil
	}}
}

// sections reads a list of sections into p. Each item begins as blank, and keys are
// the keys of one.
func sections[T any](name string, p *[]T, blank T, keys func(*T) []key) key {
	item := blank
	return key{name: name, keys: keys(&item), items: func(d *decoder, path string, n *yaml.Node) {
		if n.Tag == "!!null" {
			return
		}
		if n.Kind != yaml.SequenceNode {
			d.faultf(n, path, "want a list, got %s", show(n))
			return
		}
		list := make([]T, len(n.Content))
		for i, val := range n.Content {
			if val.Kind == yaml.AliasNode {
				val = val.Alias
			}
			list[i] = blank
			d.section(fmt.Sprintf("%s[%d].", path, i), val, keys(&list[i]))
		}
		*p = list
	}}
}

// kindOf says in words what a value of this type looks like.
func kindOf(v any) string {
	switch v.(type) {
	case bool:
		return "true or false"
	case int, int64:
		return "a whole number"
	case float64:
		return "a number"
	case time.Duration:
		return "a duration such as 30s"
	default:
		return "a text"
	}
}

// show is a node as a short piece of a message.
func show(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a section"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "nothing"
	case len(n.Value) > 40:
		return fmt.Sprintf("%.40q...", n.Value)
	default:
		return fmt.Sprintf("%q", n.Value)
	}
}

// decode reads a file into the keys and returns every fault that it finds.
func decode(data []byte, keys []key) []error {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil // an empty file: all defaults
	} else if err != nil {
		return []error{err}
	}
	var next yaml.Node
	if err := dec.Decode(&next); !errors.Is(err, io.EOF) {
		return []error{errors.New("more than one YAML document in the file")}
	}
	var d decoder
	d.section("", doc.Content[0], keys)
	return d.faults
}

type decoder struct{ faults []error }

func (d *decoder) faultf(n *yaml.Node, path, format string, args ...any) {
	d.faults = append(d.faults, fmt.Errorf("line %d: %s: %s", n.Line, path, fmt.Sprintf(format, args...)))
}

// section reads a mapping. path is empty for the file itself, else it ends in a dot.
func (d *decoder) section(path string, n *yaml.Node, keys []key) {
	if n.Tag == "!!null" {
		return // a section whose keys are all commented out
	}
	if n.Kind != yaml.MappingNode {
		d.faultf(n, cmp.Or(strings.TrimSuffix(path, "."), "file"), "want a section, got %s", show(n))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, val := n.Content[i], n.Content[i+1]
		if val.Kind == yaml.AliasNode {
			val = val.Alias
		}
		switch k, ok := find(keys, name.Value); {
		case !ok:
			d.faultf(name, path+name.Value, "unknown key%s", hint(name.Value, keys))
		case seen[name.Value]:
			d.faultf(name, path+name.Value, "given twice")
		case k.items != nil:
			k.items(d, path+name.Value, val)
		case k.set == nil:
			d.section(path+name.Value+".", val, k.keys)
		default:
			if err := k.set(val); err != nil {
				d.faultf(val, path+name.Value, "%v", err)
			}
		}
		seen[name.Value] = true
	}
}

func find(keys []key, name string) (key, bool) {
	for _, k := range keys {
		if k.name == name {
			return k, true
		}
	}
	return key{}, false
}

// hint names the key that was probably meant: the nearest within a third of
// its length.
func hint(name string, keys []key) string {
	best, least := "", len(name)/3+1
	for _, k := range keys {
		if d := distance(strings.ToLower(name), strings.ToLower(k.name)); d < least {
			best, least = k.name, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// distance is the number of bytes to insert, delete or change to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
