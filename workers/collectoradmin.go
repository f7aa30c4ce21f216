package workers

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/kvlane/kvlane/internal/observability"
	"github.com/kvlane/kvlane/kvindex"
)

// enginesPath is before a worker's name in the path of its pages.
const enginesPath = "/engines/"

const collectorPages = `kvlane collector

GET /metrics                                figures for Prometheus
GET /healthz                                200 when every engine takes requests, else 503 and which do not
GET /collector/state                        the engines as they are now
GET /engines/WORKER/agent/state             one of them
GET /engines/WORKER/agent/content           the blocks that it says it holds
GET /engines/WORKER/agent/prefixes?n=100    prompts that it once computed
`

// adminMux serves the pages of the collector, and for each engine those of an agent.
func (c *Collector) adminMux() *http.ServeMux {
	mux := observability.Admin{Gatherer: c.deps.Registry, Ready: c.notReady}.Mux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, collectorPages) })
	mux.HandleFunc("GET /collector/state", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, c.State()) })
	page := func(name string, serve func(*follower, http.ResponseWriter, *http.Request)) {
		mux.HandleFunc("GET "+enginesPath+"{worker}/agent/"+name, func(w http.ResponseWriter, r *http.Request) {
			f := c.find(kvindex.WorkerID(r.PathValue("worker")))
			if f == nil {
				http.Error(w, "no such engine", http.StatusNotFound)
				return
			}
			serve(f, w, r)
		})
	}
	page("state", func(f *follower, w http.ResponseWriter, _ *http.Request) { writeJSON(w, f.State()) })
	page("content", (*follower).serveContent)
	page("prefixes", (*follower).servePrefixes)
	return mux
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return // the reader is gone
	}
}

// State is every engine's state at this moment, by the workers' names.
func (c *Collector) State() []State {
	list := []State{}
	for _, f := range c.all() {
		list = append(list, f.State())
	}
	return list
}

// all are the engines under watch.
func (c *Collector) all() []*follower {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*follower, 0, len(c.watched))
	for _, id := range slices.Sorted(maps.Keys(c.watched)) {
		list = append(list, c.watched[id].follower)
	}
	return list
}

func (c *Collector) find(id kvindex.WorkerID) *follower {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.watched[id]; w != nil {
		return w.follower
	}
	return nil
}

// notReady says which engine takes no requests, or what is wrong with the list; nil if
// nothing is.
func (c *Collector) notReady() error {
	c.mu.Lock()
	fault := c.fault
	c.mu.Unlock()
	if fault != nil {
		return fmt.Errorf("list of engines: %w", fault)
	}
	for _, f := range c.all() {
		if err := f.notReady(); err != nil {
			return fmt.Errorf("%s: %w", f.cfg.WorkerID, err)
		}
	}
	return nil
}
