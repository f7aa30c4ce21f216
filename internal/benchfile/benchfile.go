// Package benchfile writes benchmark results: a table for people and
// out/bench/NAME.json for tools. A row states what was measured, what it was
// measured against in the same minutes, and whether the goal was met; a goal
// that was missed stays in the file.
package benchfile

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

// Row is one measured figure.
type Row struct {
	Case   string `json:"case"`
	Metric string `json:"metric"`
	Unit   string `json:"unit"`
	// Better is "lower" or "higher".
	Better string  `json:"better"`
	Ours   float64 `json:"ours"`
	// Peer, PeerValue and Ratio (ours over peer) are nil without a peer.
	Peer      *string  `json:"peer"`
	PeerValue *float64 `json:"peer_value"`
	Ratio     *float64 `json:"ratio"`
	// Goal bounds the ratio or our own value, as GoalOn says; nil for a figure
	// that is only reported.
	Goal   *float64 `json:"goal"`
	GoalOn string   `json:"goal_on,omitempty"`
	OK     bool     `json:"ok"`
	// Reason says why a goal was missed.
	Reason string `json:"reason,omitempty"`
}

// File is one benchmark's result.
type File struct {
	Bench  string `json:"bench"`
	Commit string `json:"commit"`
	CPU    string `json:"cpu"`
	Date   string `json:"date"`
	Short  bool   `json:"short"`
	Rows   []Row  `json:"rows"`
}

// New describes the machine and the checkout that a benchmark runs on.
func New(bench string, short bool) *File {
	return &File{
		Bench: bench, Commit: commit(), CPU: cpuModel(), Date: time.Now().UTC().Format(time.DateOnly), Short: short,
	}
}

// Compare adds a row with a peer. goal bounds ours/peer: at most for "lower",
// at least for "higher"; 0 for no goal.
func (f *File) Compare(name, metric, unit, better string, ours float64, peer string, peerValue, goal float64) {
	row := Row{Case: name, Metric: metric, Unit: unit, Better: better, Ours: ours, Peer: &peer, PeerValue: &peerValue, OK: true}
	if peerValue != 0 {
		ratio := ours / peerValue
		row.Ratio = &ratio
	}
	if goal != 0 {
		row.Goal, row.GoalOn = &goal, "ratio"
		row.OK = row.Ratio != nil && met(better, *row.Ratio, goal)
	}
	f.Rows = append(f.Rows, row)
}

// Bound adds a row without a peer whose own value has a goal.
func (f *File) Bound(name, metric, unit, better string, ours, goal float64) {
	f.Rows = append(f.Rows, Row{
		Case: name, Metric: metric, Unit: unit, Better: better, Ours: ours, Goal: &goal, GoalOn: "ours",
		OK: met(better, ours, goal),
	})
}

// Because says why the last row missed its goal; nothing if it did not.
func (f *File) Because(reason string) {
	if row := &f.Rows[len(f.Rows)-1]; !row.OK {
		row.Reason = reason
	}
}

// Print writes the rows as a table.
func (f *File) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(t, "%s on %s, %s, commit %s\n", f.Bench, f.CPU, f.Date, f.Commit) // Flush reports it
	_, _ = fmt.Fprintln(t, "case\tmetric\tunit\tours\tpeer\tpeer's\tratio\tgoal\tok\twhy not")
	for _, r := range f.Rows {
		peer, value, ratio, goal := "-", "-", "-", "-"
		if r.Peer != nil {
			peer, value = *r.Peer, fmt.Sprintf("%.4g", *r.PeerValue)
		}
		if r.Ratio != nil {
			ratio = fmt.Sprintf("%.2f", *r.Ratio)
		}
		if r.Goal != nil {
			goal = fmt.Sprintf("%.4g", *r.Goal)
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%.4g\t%s\t%s\t%s\t%s\t%t\t%s\n",
			r.Case, r.Metric, r.Unit, r.Ours, peer, value, ratio, goal, r.OK, r.Reason)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print rows: %w", err)
	}
	return nil
}

// Write stores the file as dir/NAME.json.
func (f *File) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", f.Bench, err)
	}
	if err := os.WriteFile(filepath.Join(dir, f.Bench+".json"), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", f.Bench, err)
	}
	return nil
}

// commit is the checkout's commit, "unknown" outside a checkout.
func commit() string {
	out, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output() //nolint:noctx // ends by itself
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// cpuModel is the processor's name and the number of its cores here.
func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	defer func() { _ = f.Close() }() // read only
	name, cores := "unknown", 0
	for s := bufio.NewScanner(f); s.Scan(); {
		key, value, _ := strings.Cut(s.Text(), ":")
		switch strings.TrimSpace(key) {
		case "model name":
			name = strings.TrimSpace(value)
		case "processor":
			cores++
		}
	}
	return fmt.Sprintf("%s, %d cores", name, cores)
}

func met(better string, value, goal float64) bool {
	if better == "lower" {
		return value <= goal
	}
	return value >= goal
}
