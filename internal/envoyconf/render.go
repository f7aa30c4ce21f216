package envoyconf

import (
	"bytes"
	_ "embed"
	"fmt"
	"net/netip"
	"slices"
	"text/template"
	"time"
)

//go:embed bootstrap.yaml.tmpl
var bootstrap string

// Render prints the bootstrap as YAML, or lists all faults of the options.
func Render(o Options) ([]byte, error) {
	if err := o.Validate(); err != nil {
		return nil, fmt.Errorf("envoy options: %w", err)
	}
	t, err := template.New("bootstrap.yaml.tmpl").Parse(bootstrap)
	if err != nil {
		return nil, fmt.Errorf("parse bootstrap template: %w", err)
	}
	v := view{
		Options:        o,
		Listen:         ipAddress(o.Listen),
		MessageTimeout: seconds(o.MessageTimeout),
		ConnectTimeout: seconds(o.ConnectTimeout),
		ExtProcType:    "STATIC",
	}
	if o.Admin != "" {
		a := ipAddress(o.Admin)
		v.Admin = &a
	}
	for _, p := range dedup(o.ExtProc) {
		host, port, err := splitHostPort(p)
		if err != nil {
			return nil, fmt.Errorf("ext-proc %q: %w", p, err)
		}
		v.ExtProc = append(v.ExtProc, address{host, port})
		if _, err := netip.ParseAddr(host); err != nil {
			v.ExtProcType = "STRICT_DNS"
		}
	}
	v.Replicas = len(v.ExtProc) > 1 || v.ExtProcType == "STRICT_DNS"
	for _, e := range dedup(o.Endpoints) {
		v.Endpoints = append(v.Endpoints, ipAddress(e))
	}
	v.StripHeaders = dedup(o.StripHeaders)
	var b bytes.Buffer
	if err := t.Execute(&b, v); err != nil {
		return nil, fmt.Errorf("render bootstrap: %w", err)
	}
	return b.Bytes(), nil
}

// view is what the template sees; its fields hide those of Options that need a
// different form.
type view struct {
	Options
	Listen         address
	Admin          *address
	ExtProc        []address
	ExtProcType    string
	Replicas       bool // there may be several pickers
	Endpoints      []address
	StripHeaders   []string
	MessageTimeout string
	ConnectTimeout string
}

type address struct {
	Host string
	Port uint16
}

// ipAddress parses an ip:port that Validate has accepted.
func ipAddress(s string) address {
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return address{}
	}
	return address{a.Addr().String(), a.Port()}
}

// seconds writes a duration as protobuf's JSON form does.
func seconds(d time.Duration) string {
	return fmt.Sprintf("%.3fs", d.Seconds())
}

// dedup keeps the first of equal values, in order.
func dedup(in []string) []string {
	var out []string
	for _, s := range in {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
