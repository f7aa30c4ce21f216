package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

func TestLoad(t *testing.T) {
	datadriven.RunTest(t, "testdata/load.txt", func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd != "load" {
			d.Fatalf(t, "unknown command %s", d.Cmd)
		}
		dir := t.TempDir()
		path := filepath.Join(dir, "epp.yaml")
		if err := os.WriteFile(path, []byte(d.Input), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(path)
		if err != nil {
			return strings.ReplaceAll(err.Error(), dir+"/", "") + "\n"
		}
		if diff := changed("", reflect.ValueOf(Default()), reflect.ValueOf(c)); diff != "" {
			return diff
		}
		return "defaults\n"
	})
}

// The README's example of a file is one that loads.
func TestReadmeExample(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n```yaml\n")
	example, _, closed := strings.Cut(rest, "\n```\n")
	if !found || !closed {
		t.Fatal("README.md has no yaml block")
	}
	if _, faults := parse([]byte(example)); len(faults) > 0 {
		t.Errorf("README.md's example: %v", faults)
	}
}

// changed lists the values that differ from the defaults.
func changed(path string, a, b reflect.Value) string {
	var out strings.Builder
	for i := range a.NumField() {
		name := path + a.Type().Field(i).Tag.Get("yaml")
		x, y := a.Field(i), b.Field(i)
		if x.Kind() == reflect.Struct {
			out.WriteString(changed(name+".", x, y))
			continue
		}
		if !reflect.DeepEqual(x.Interface(), y.Interface()) {
			out.WriteString(name + " = " + fmt.Sprint(y.Interface()) + "\n")
		}
	}
	return out.String()
}

// The names in keys and the struct's tags must be the same.
func TestKeysAreTheTags(t *testing.T) {
	var c Config
	want := tags("", reflect.TypeOf(c))
	got := names("", c.keys())
	if !slices.Equal(got, want) {
		t.Errorf("keys read\n%q\nthe struct has\n%q", got, want)
	}
}

func tags(path string, t reflect.Type) []string {
	var out []string
	for f := range t.Fields() {
		name := path + f.Tag.Get("yaml")
		if f.Type.Kind() == reflect.Struct {
			out = append(out, tags(name+".", f.Type)...)
			continue
		}
		if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct {
			out = append(out, tags(name+"[].", f.Type.Elem())...)
			continue
		}
		out = append(out, name)
	}
	return out
}

func names(path string, keys []key) []string {
	var out []string
	for _, k := range keys {
		if k.items != nil {
			out = append(out, names(path+k.name+"[].", k.keys)...)
			continue
		}
		if k.set == nil {
			out = append(out, names(path+k.name+".", k.keys)...)
			continue
		}
		out = append(out, path+k.name)
	}
	return out
}

func TestDefaultIsValid(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatal(err)
	}
	if c, err := Load(""); err != nil || !reflect.DeepEqual(c, Default()) {
		t.Fatalf("got %v %v", c, err)
	}
	if _, err := Load(filepath.Join(t.TempDir(), "absent.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("got %v", err)
	}
}

// What parse accepts is valid, and no file makes it panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte("picker: {policy: kv, alpha: 0.1}\nextproc: {bodyTimeout: 40s}\n"))
	f.Add([]byte("a: &a {a: *a}\npicker: *a\n"))
	f.Add([]byte("picker:\n  polcy: kv\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, faults := parse(data)
		if len(faults) == 0 && c.Validate() != nil {
			t.Fatalf("accepted: %v", c.Validate())
		}
	})
}
