package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDecodeEngines(t *testing.T) {
	list, err := decodeEngines([]byte("# two\n- engine: http://10.0.0.1:8000\n  kv-events: [tcp://10.0.0.1:5557]\n- engine: http://pod:8000\n  address: 10.0.0.2:8000\n  block-size: 32\n"))
	if err != nil || len(list) != 2 || list[0].KVEvents[0] != "tcp://10.0.0.1:5557" || list[1].Address != "10.0.0.2:8000" || list[1].BlockSize != 32 {
		t.Errorf("%+v, %v", list, err)
	}
	for text, fault := range map[string]string{
		"- engine: http://10.0.0.1:8000\n  events: [x]\n":                                "field events not found",
		"engine: http://10.0.0.1:8000\n":                                                 "cannot unmarshal",
		"- engine: http://pod:8000\n- engine: ftp://x\n":                                 `"http://pod:8000": its host is no IP address`,
		"- engine: http://10.0.0.1:8000\n- engine: 10.0.0.1:8000\n":                      "is that of engine",
		"- engine: http://10.0.0.1:8000\n---\n- engine: http://10.0.0.2:8000\n":          "more than one YAML document",
		"- {engine: http://10.0.0.1:8000, kv-replay: [tcp://10.0.0.1:5657]}\n":           "1 endpoints for 0",
		"- {engine: http://10.0.0.1:8000, block-size: -1}\n- {engine: '', address: x}\n": "block-size -1",
	} {
		if _, err := decodeEngines([]byte(text)); err == nil || !strings.Contains(err.Error(), fault) {
			t.Errorf("%q: %v, want %s", text, err, fault)
		}
	}
	if list, err := decodeEngines(nil); err != nil || len(list) != 0 {
		t.Errorf("an empty file: %v, %v", list, err)
	}
}

func FuzzDecodeEngines(f *testing.F) {
	f.Add([]byte("- engine: http://10.0.0.1:8000\n  kv-events: [tcp://10.0.0.1:5557]\n"))
	f.Add([]byte("- {engine: http://h:1, address: '[::1]:80'}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := decodeEngines(data)
		if err != nil {
			return
		}
		for i := range list {
			if err := list[i].Validate(); err != nil {
				t.Errorf("taken: %v", err)
			}
		}
	})
}

// TestEngineFile: what changed is read, what is wrong is told each time.
func TestEngineFile(t *testing.T) {
	f := engineFile{path: filepath.Join(t.TempDir(), "engines.yaml")}
	if _, err := f.read(); err == nil {
		t.Error("no file, no error")
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		write("- engine: http://10.0.0.1:8000\n")
		for range 2 {
			if list, err := f.read(); err != nil || len(list) != 1 {
				t.Errorf("%v, %v", list, err)
			}
		}
		write("- engin: http://10.0.0.1:8000\n")
		for range 2 {
			if _, err := f.read(); err == nil || !strings.Contains(err.Error(), "engines.yaml: ") {
				t.Errorf("a wrong key: %v", err)
			}
		}
	}
}
