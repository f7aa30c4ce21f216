package extproc

import (
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvlane/kvlane/internal/openai"
	"github.com/kvlane/kvlane/internal/timing"
	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// world is a server with its fleet and a clock that only tests move.
type world struct {
	t        testing.TB
	now      time.Time
	pool     *picker.Pool
	index    *kvindex.Index
	prefixes *kvindex.PrefixMap
	server   *Server
	registry *prometheus.Registry
	streams  map[string]*stream
	seq      map[kvindex.Owner]uint64
}

const blockSize = 16

func newWorld(t testing.TB, cfg Config, pc picker.Config) *world {
	t.Helper()
	w := &world{
		t: t, now: time.Unix(1000, 0), pool: picker.NewPool(pc, timing.Known()),
		index: kvindex.NewIndex(), prefixes: kvindex.NewPrefixMap(1 << 20),
		registry: prometheus.NewRegistry(), streams: make(map[string]*stream), seq: make(map[kvindex.Owner]uint64),
	}
	var err error
	w.server, err = New(cfg, NewRouter(w.index, w.prefixes, w.pool, "secret"), NewMetrics(w.registry), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w.server.clock = func() time.Time { return w.now }
	made := 0
	w.server.newID = func() string { made++; return fmt.Sprintf("made-%d", made) }
	return w
}

// worker adds or changes a member of the pool; its id is name, of no rank but 0.
func (w *world) worker(name string, h *kvindex.Hello) {
	o := kvindex.Owner{Worker: kvindex.WorkerID(name)}
	w.pool.Apply(&kvindex.Record{Owner: o, Epoch: 1, Term: 1, Kind: kvindex.KindHello, Hello: h}, w.now)
}

// load is a worker's report of so many running requests.
func (w *world) load(name string, running uint32) {
	w.pool.Apply(&kvindex.Record{Owner: kvindex.Owner{Worker: kvindex.WorkerID(name)}, Epoch: 1, Term: 1, Kind: kvindex.KindLoad,
		Load: &kvindex.Load{Running: running}}, w.server.clock())
}

func hello(address string) *kvindex.Hello {
	return &kvindex.Hello{Address: address, Ready: true, Model: "base", Served: []string{"base"},
		BlockSize: blockSize, KVBlocks: 10_000, LeaseMs: 3_600_000}
}

// warm has a worker hold a prompt's first blocks, at one token for every four
// bytes.
func (w *world) warm(name, path string, body []byte) {
	w.t.Helper()
	r, err := openai.Parse(apiOf("POST", path), body)
	if err != nil {
		w.t.Fatal(err)
	}
	ns := kvindex.Namespace{Model: "base", BlockSize: blockSize}
	var chains [][]kvindex.BlockHash
	for _, ids := range r.TokenPrompts {
		chains = append(chains, kvindex.AppendChain(nil, ns.Root(), ids, blockSize))
	}
	seed := r.Seed("secret", "base", "")
	for _, h := range r.Hashers(seed) {
		tokens := make([]uint32, h.Len()/4)
		for i := range tokens {
			tokens[i] = uint32(h.Chunks()[min(i*4/kvindex.ChunkSize, len(h.Chunks())-1)]) + uint32(i)
		}
		chain := kvindex.AppendChain(nil, ns.Root(), tokens, blockSize)
		w.prefixes.Learn(&kvindex.Learned{Seed: seed, Chunks: h.Chunks(), Bytes: uint32(h.Len()), Tokens: uint32(len(tokens)),
			BlockSize: blockSize, Blocks: chain})
		chains = append(chains, chain)
	}
	for _, chain := range chains {
		o := kvindex.Owner{Worker: kvindex.WorkerID(name)}
		w.seq[o]++
		rec := &kvindex.Record{Owner: o, Epoch: 1, Term: 1, Seq: w.seq[o], Kind: kvindex.KindStored,
			Stored: &kvindex.Stored{Parent: ns.Root(), Hashes: chain}}
		if err := w.index.Apply(rec); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) stream(name string) *stream {
	if w.streams[name] == nil {
		w.streams[name] = newStream(w.server)
	}
	return w.streams[name]
}

// send gives a stream one message, as the gRPC loop does.
func (w *world) send(st *stream, in *extprocv3.ProcessingRequest) responses {
	out := w.server.step(st, in, nil)
	st.release()
	return out
}

// gauge reads one value of the registry; labels are joined by commas.
func (w *world) metrics() map[string]float64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			name := strings.TrimPrefix(f.GetName(), "kvlane_")
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			got[name] = number(m)
		}
	}
	return got
}

func number(m *dto.Metric) float64 {
	switch {
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue()
	}
	return float64(m.GetHistogram().GetSampleCount())
}

// TestScripts runs testdata/*.txt. A script has one fleet and any number of
// streams, named by s= (default a). Its commands:
//
//	config KEY=VALUE...          settings, before the first use of the fleet
//	fleet                        lines: NAME ADDRESS [role=R] [served=M[,M]] [notready]
//	warm worker=W path=P         body; W then holds the prompt's blocks
//	headers [end] [mode=M] [served-mode=M] [subset=A[,A]] [subset-list=A[,A]] [observe]   lines: NAME VALUE
//	body [end] [fill=N]          the text, or N bytes more of it
//	trailers
//	response-headers [end] [served=A] [status=N]
//	response-body [end] [fill=N]
//	response-trailers
//	empty                        a message without a request
//	wait for=D                   moves the clock; streams over their deadline expire
//	look                         the gate looks who can go
//	stop                         the server is to stop
//	close                        the end of the gRPC stream
//	state                        every metric that is not 0
//	plan id=I                    what is kept for explain
func TestScripts(t *testing.T) {
	scripts, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range scripts {
		t.Run(filepath.Base(path), func(t *testing.T) { runScript(t, path) })
	}
}

func runScript(t *testing.T, path string) {
	cfg, pc := Default(), picker.DefaultConfig()
	var w *world
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd == "config" {
			configure(t, d, &cfg, &pc)
			return ""
		}
		if w == nil {
			w = newWorld(t, cfg, pc)
		}
		w.t = t
		return w.command(d)
	})
}

func configure(t *testing.T, d *datadriven.TestData, cfg *Config, pc *picker.Config) {
	for _, a := range d.CmdArgs {
		v := a.Vals[0]
		n, _ := strconv.Atoi(v)
		switch a.Key {
		case "max-body":
			cfg.MaxBodyBytes = n
		case "max-buffered":
			cfg.MaxBufferedBytes = int64(n)
		case "max-streams":
			cfg.MaxStreams = n
		case "allow-policy":
			cfg.AllowPolicyHeader = v == "true"
		case "clear-route-cache":
			cfg.ClearRouteCache = v == "true"
		case "overloaded-529":
			cfg.Overloaded529 = v == "true"
		case "max-requests":
			pc.MaxRequests = n
		case "fallbacks":
			pc.Fallbacks = n
		case "max-queue-ms":
			pc.MaxQueueMs = float64(n)
		case "flow":
			cfg.Flow.Enabled = v == "true"
		case "queue":
			cfg.Flow.Queue.MaxRequests = n
		case "ttl":
			cfg.Flow.Queue.TTL = duration(t, v)
		case "buffered-wait":
			cfg.Flow.BufferedWait = duration(t, v)
		case "client-hints":
			cfg.ClientHints = v == "true"
		case "max-priority":
			cfg.MaxPriority = n
		case "objectives":
			cfg.Objectives = strings.ReplaceAll(v, ":", "=")
		case "engine-priority":
			cfg.EnginePriority = EnginePriority(v)
		default:
			t.Fatalf("%s: unknown key %s", d.Pos, a.Key)
		}
	}
}

func (w *world) command(d *datadriven.TestData) string {
	name := "a"
	d.MaybeScanArgs(w.t, "s", &name)
	switch d.Cmd {
	case "fleet":
		w.fleet(d)
		return ""
	case "warm":
		w.warm(arg(w.t, d, "worker"), arg(w.t, d, "path"), []byte(d.Input))
		return ""
	case "wait":
		return w.wait(duration(w.t, arg(w.t, d, "for")))
	case "look":
		w.server.gate.look(w.now)
		return w.settle()
	case "stop":
		w.server.Stop()
		return ""
	case "close":
		w.stream(name).end(w.now)
		delete(w.streams, name)
		return ""
	case "state":
		return w.state()
	case "plan":
		return w.plan(arg(w.t, d, "id"))
	}
	return show(w.send(w.stream(name), w.message(d)))
}

func (w *world) fleet(d *datadriven.TestData) {
	for line := range strings.SplitSeq(strings.TrimSpace(d.Input), "\n") {
		f := strings.Fields(line)
		h := hello(f[1])
		for _, opt := range f[2:] {
			k, v, _ := strings.Cut(opt, "=")
			switch k {
			case "role":
				h.Role = map[string]kvindex.Role{"prefill": kvindex.RolePrefill, "decode": kvindex.RoleDecode, "relay": kvindex.RoleRelay}[v]
			case "served":
				h.Served = strings.Split(v, ",")
			case "notready":
				h.Ready = false
			default:
				w.t.Fatalf("%s: unknown option %s", d.Pos, opt)
			}
		}
		w.worker(f[0], h)
	}
}

func (w *world) wait(d time.Duration) string {
	w.now = w.now.Add(d)
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(w.streams)) {
		st := w.streams[name]
		if out := st.expire(w.now, nil); len(out) > 0 {
			st.release()
			fmt.Fprintf(&b, "stream %s:\n%s", name, show(out))
		}
	}
	return b.String()
}

func duration(t testing.TB, s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// settle answers the streams that the gate has decided.
func (w *world) settle() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(w.streams)) {
		st := w.streams[name]
		select {
		case <-st.decided():
			out := w.send(st, nil)
			fmt.Fprintf(&b, "stream %s:\n%s", name, show(out))
		default:
		}
	}
	return b.String()
}

func (w *world) state() string {
	var lines []string
	for name, v := range w.metrics() {
		if v != 0 {
			lines = append(lines, fmt.Sprintf("%s %g\n", name, v))
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "")
}

func (w *world) plan(id string) string {
	e, ok := w.server.Plans().Get(id)
	if !ok {
		return "none\n"
	}
	p := e.Decision.Plan
	waited := ""
	if e.Decision.Waited > 0 {
		waited = fmt.Sprintf(" waited=%v", e.Decision.Waited)
	}
	return fmt.Sprintf("path=%s model=%q prompts=%d isl=%d exact=%t known=%d cached=%d worker=%q reason=%s refusal=%q served=%q outcome=%q%s\n",
		e.Path, e.Decision.Model, e.Decision.Prompts, p.ISL, e.Decision.Exact, e.Decision.KnownTokens, p.Cached,
		p.Decode.Worker, p.Reason, e.Refusal, e.Served, e.Outcome, waited)
}

// message builds what the command says.
func (w *world) message(d *datadriven.TestData) *extprocv3.ProcessingRequest {
	end := d.HasArg("end")
	switch d.Cmd {
	case "headers":
		return w.headersMessage(d, end)
	case "body":
		return requestBodyMessage(bodyOf(w.t, d), end)
	case "trailers":
		return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{}}}
	case "response-headers":
		in := responseHeadersMessage(end)
		if d.HasArg("served") {
			in.MetadataContext = metadataContext(MetadataNamespace, KeyServed, structpb.NewStringValue(arg(w.t, d, "served")))
		}
		return in
	case "response-body":
		return responseBodyMessage(bodyOf(w.t, d), end)
	case "response-trailers":
		return responseTrailersMessage()
	case "empty":
		return &extprocv3.ProcessingRequest{}
	}
	w.t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	return nil
}

func (w *world) headersMessage(d *datadriven.TestData, end bool) *extprocv3.ProcessingRequest {
	var pairs []string
	for line := range strings.SplitSeq(strings.TrimSpace(d.Input), "\n") {
		k, v, _ := strings.Cut(line, " ")
		pairs = append(pairs, k, v)
	}
	in := requestHeadersMessage(end, pairs...)
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "mode":
			in.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: mode(a.Vals[0]), ResponseBodyMode: mode(a.Vals[0])}
		case "subset":
			in.MetadataContext = metadataContext(SubsetNamespace, KeySubset, structpb.NewStringValue(strings.Join(a.Vals, ",")))
		case "subset-list":
			list := &structpb.ListValue{}
			for _, v := range a.Vals {
				list.Values = append(list.Values, structpb.NewStringValue(v))
			}
			in.MetadataContext = metadataContext(SubsetNamespace, KeySubset, structpb.NewListValue(list))
		case "observe":
			in.ObservabilityMode = true
		}
	}
	return in
}

func mode(name string) filterv3.ProcessingMode_BodySendMode {
	return filterv3.ProcessingMode_BodySendMode(filterv3.ProcessingMode_BodySendMode_value[strings.ToUpper(name)])
}

func bodyOf(t testing.TB, d *datadriven.TestData) []byte {
	body := strings.TrimSuffix(d.Input, "\n")
	if d.HasArg("fill") {
		n, err := strconv.Atoi(arg(t, d, "fill"))
		if err != nil {
			t.Fatal(err)
		}
		body += strings.Repeat("a", n)
	}
	return []byte(body)
}

func arg(t testing.TB, d *datadriven.TestData, name string) string {
	for _, a := range d.CmdArgs {
		if a.Key == name {
			return strings.Join(a.Vals, ",")
		}
	}
	t.Fatalf("%s: %s wants %s=", d.Pos, d.Cmd, name)
	return ""
}

func metadataContext(namespace, key string, v *structpb.Value) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{namespace: {Fields: map[string]*structpb.Value{key: v}}}}
}

func requestHeadersMessage(end bool, pairs ...string) *extprocv3.ProcessingRequest {
	m := &corev3.HeaderMap{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: m, EndOfStream: end}}}
}

func requestBodyMessage(body []byte, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: body, EndOfStream: end}}}
}

func responseHeadersMessage(end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{EndOfStream: end}}}
}

func responseBodyMessage(body []byte, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: body, EndOfStream: end}}}
}

func responseTrailersMessage() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}}
}

// show writes answers one a line.
func show(out responses) string {
	if len(out) == 0 {
		return "nothing\n"
	}
	var b strings.Builder
	for _, a := range out {
		switch v := a.GetResponse().(type) {
		case *extprocv3.ProcessingResponse_RequestHeaders:
			b.WriteString("request headers" + showCommon(v.RequestHeaders.GetResponse()) + showMetadata(a))
		case *extprocv3.ProcessingResponse_RequestBody:
			b.WriteString("request body" + showCommon(v.RequestBody.GetResponse()) + showMetadata(a))
		case *extprocv3.ProcessingResponse_RequestTrailers:
			b.WriteString("request trailers")
		case *extprocv3.ProcessingResponse_ResponseHeaders:
			b.WriteString("response headers" + showCommon(v.ResponseHeaders.GetResponse()))
		case *extprocv3.ProcessingResponse_ResponseBody:
			b.WriteString("response body" + showCommon(v.ResponseBody.GetResponse()))
		case *extprocv3.ProcessingResponse_ResponseTrailers:
			b.WriteString("response trailers")
		case *extprocv3.ProcessingResponse_ImmediateResponse:
			i := v.ImmediateResponse
			fmt.Fprintf(&b, "immediate %d %s%s\n  %s", i.GetStatus().GetCode(), i.GetDetails(), showMutation(i.GetHeaders()), i.GetBody())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func showCommon(c *extprocv3.CommonResponse) string {
	s := ""
	if c.GetClearRouteCache() {
		s += " clear-route-cache"
	}
	if m := c.GetBodyMutation().GetStreamedResponse(); m != nil {
		s += fmt.Sprintf(" streamed %d bytes", len(m.GetBody()))
		if m.GetEndOfStream() {
			s += " end"
		}
	}
	return s + showMutation(c.GetHeaderMutation())
}

func showMutation(m *extprocv3.HeaderMutation) string {
	s := ""
	for _, h := range m.GetSetHeaders() {
		s += fmt.Sprintf("\n  set %s: %s", h.GetHeader().GetKey(), h.GetHeader().GetRawValue())
	}
	for _, h := range m.GetRemoveHeaders() {
		s += "\n  remove " + h
	}
	return s
}

func showMetadata(a *extprocv3.ProcessingResponse) string {
	s := ""
	for ns, v := range a.GetDynamicMetadata().GetFields() {
		for k, e := range v.GetStructValue().GetFields() {
			s += fmt.Sprintf("\n  metadata %s/%s: %s", ns, k, e.GetStringValue())
		}
	}
	return s
}
