package listing_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/listing"
)

func sample(t testing.TB) ([]byte, *listing.Listing) {
	t.Helper()
	long := make([]kvindex.BlockHash, 1500)
	for i := range long {
		long[i] = kvindex.BlockHash(i) * 0x9e3779b97f4a7c15
	}
	want := &listing.Listing{
		Sources: []listing.Source{{Worker: "w1", Rank: 1, Kind: listing.Dump, Life: "2", Next: 57, Unnamed: 3}},
		Owners: []listing.Held{
			{Owner: listing.Owner{Owner: kvindex.Owner{Worker: "w1", Rank: 1}, Epoch: 1, Term: 2, Seq: 3, Doubtful: true, Blocks: 1500}, Hashes: long},
			{Owner: listing.Owner{Owner: kvindex.Owner{Worker: "w1", Rank: 1, Tier: kvindex.Disk}}},
		},
	}
	var out bytes.Buffer
	w := listing.NewWriter(&out)
	err := w.Source(want.Sources[0])
	for _, o := range want.Owners {
		err = errors.Join(err, w.Owner(o.Owner, o.Hashes))
	}
	if err = errors.Join(err, w.End()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), want
}

func TestRoundTrip(t *testing.T) {
	text, want := sample(t)
	got, err := listing.Read(bytes.NewReader(text))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\n%+v\nwant\n%+v", err, got, want)
	}
	if n := len(got.Of(kvindex.Owner{Worker: "w1", Rank: 1})); n != 1500 {
		t.Errorf("%d blocks", n)
	}
	if got.Of(kvindex.Owner{Worker: "w2"}) != nil {
		t.Error("blocks of an owner that is not there")
	}
	if _, err := listing.Read(bytes.NewReader(append(text, "more"...))); err != nil {
		t.Errorf("with something behind its end: %v", err)
	}
}

// A listing that was cut anywhere is refused.
func TestCut(t *testing.T) {
	text, _ := sample(t)
	for n := 0; n < len(text)-1; n += 97 {
		if _, err := listing.Read(bytes.NewReader(text[:n])); !errors.Is(err, listing.ErrCut) {
			t.Fatalf("after %d bytes: %v", n, err)
		}
	}
}

func TestRefused(t *testing.T) {
	const owner = `{"owner":{"worker":"w","tier":"device","blocks":1}}` + "\n"
	for name, text := range map[string]string{
		"a hash before an owner": `{"hashes":["1"]}`,
		"a hash that is none":    owner + `{"hashes":["x"]}`,
		"a tier that is none":    `{"owner":{"worker":"w","tier":"tape"}}`,
		"a missing block":        owner + `{"end":{"owners":1}}`,
		"a block too many":       owner + `{"hashes":["1","2"]}` + `{"end":{"owners":1}}`,
		"a missing owner":        `{"end":{"owners":1}}`,
		"an empty line's object": `{}`,
		"no JSON":                `404 page not found`,
	} {
		if _, err := listing.Read(strings.NewReader(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzRead(f *testing.F) {
	text, _ := sample(f)
	f.Add(text[:min(len(text), 600)])
	f.Add([]byte(`{"owner":{"worker":"w","tier":"host","blocks":1}}{"hashes":["ff"]}{"end":{"owners":1}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		l, err := listing.Read(bytes.NewReader(in))
		if err != nil {
			return
		}
		var out bytes.Buffer
		w := listing.NewWriter(&out)
		for _, s := range l.Sources {
			if err := w.Source(s); err != nil {
				t.Fatal(err)
			}
		}
		for _, o := range l.Owners {
			if err := w.Owner(o.Owner, o.Hashes); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.End(); err != nil {
			t.Fatal(err)
		}
		again, err := listing.Read(&out)
		if err != nil || !reflect.DeepEqual(again, l) {
			t.Fatalf("%v\n%+v\nwant\n%+v", err, again, l)
		}
	})
}
