package epp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/kvlane/kvlane/extproc"
	"github.com/kvlane/kvlane/internal/observability"
	"github.com/kvlane/kvlane/picker"
)

// admin is the picker's page for operators:
//
//	GET  /  lists the others
//	GET  /metrics, /healthz
//	GET  /plans/{request-id}  where a request went and why
//	POST /explain?path=/v1/chat/completions[&policy=kv]  the plan for a body, nothing is booked
//	GET  /endpoints           the pool as it is now
//	     /index/...           see indexPage
type admin struct {
	router  *extproc.Router
	plans   *extproc.Plans
	pool    *picker.Pool
	index   *indexPage
	maxBody int64
	page    observability.Admin
}

func (a *admin) handler() http.Handler {
	mux := a.page.Mux()
	mux.HandleFunc("GET /plans/{id}", a.plan)
	mux.HandleFunc("POST /explain", a.explain)
	mux.HandleFunc("GET /endpoints", a.endpoints)
	a.index.register(mux)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, a.contents()) }) // the reader may be gone
	return mux
}

// contents lists the pages.
func (a *admin) contents() string {
	text := `kvlane picker

GET  /metrics              figures for Prometheus
GET  /healthz              200 when requests are taken, else 503 and why
GET  /endpoints            the pool as it is now
GET  /plans/{request-id}   where a request went and why
POST /explain?path=P       where a request with this body would go; nothing is booked
GET  /index/stats          what is known of the workers' caches
GET  /index/dump?worker=W  the blocks of all workers, or of one
POST /index/overlap        {"chain":["hex"]}: leading blocks that each worker holds
`
	if a.page.Pprof {
		text += "GET  /debug/pprof/         Go's profiles\n"
	}
	return text
}

func (a *admin) plan(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	entry, ok := a.plans.Get(id)
	if !ok {
		http.Error(w, fmt.Sprintf("no plan of request %q is kept (extproc.plans says how many are)", id), http.StatusNotFound)
		return
	}
	if entry.Reported == nil { // the answer's stream may have left before its worker's report
		if report, ok := a.router.Reported(id); ok {
			entry.Reported = &report
		}
	}
	reply(w, viewOf(entry))
}

func (a *admin) explain(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, a.maxBody))
	if err != nil {
		status := http.StatusBadRequest
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			status = http.StatusRequestEntityTooLarge
		}
		http.Error(w, err.Error(), status)
		return
	}
	query := r.URL.Query()
	ask := extproc.Ask{ID: "explain", Method: http.MethodPost, Path: "/v1/chat/completions", Body: body}
	if path := query.Get("path"); path != "" {
		ask.Path = path
	}
	if policy := query.Get("policy"); policy != "" {
		if ask.Policy, err = picker.ParsePolicy(policy); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	now := time.Now()
	decision, refusal := a.router.Explain(now, ask)
	entry := extproc.Entry{At: now, Path: ask.Path, Decision: decision}
	if refusal != nil {
		entry.Refusal = refusal.Error()
	}
	reply(w, viewOf(entry))
}

func (a *admin) endpoints(w http.ResponseWriter, _ *http.Request) {
	views := []EndpointView{}
	for _, e := range a.pool.Fleet(time.Now()).Endpoints {
		views = append(views, endpointView(e))
	}
	reply(w, views)
}

func reply[T PlanView | []EndpointView | IndexView | []OverlapView](w http.ResponseWriter, v T) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil { // a number that JSON does not have
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("content-type", "application/json")
	_, _ = w.Write(append(body, '\n')) // a client that has left gets half of it
}
