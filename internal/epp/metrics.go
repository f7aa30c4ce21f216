package epp

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/picker"
)

// collector turns the stats of index, pool and log into metrics at each
// scrape. Labels are the pool's workers, so their number is bounded by it.
type collector struct {
	index      *kvindex.Index
	indexLimit int // bytes; 0 is none
	prefixes   *kvindex.PrefixMap
	pool       *picker.Pool
	follower   *follower
	log        func() LogView
}

// Describe sends nothing: the metrics are checked when they are collected.
func (*collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads the stats once.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	send := func(kind prometheus.ValueType, name, help string, v float64, labels ...string) {
		var names []string
		if len(labels) > 0 {
			names = []string{"worker"}
		}
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("kvlane_"+name, help, names, nil), kind, v, labels...)
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue

	index := c.index.Stats()
	send(gauge, "index_owners", "Pools of blocks that the index knows.", float64(index.Owners))
	send(gauge, "index_blocks", "Distinct blocks in the index.", float64(index.Blocks))
	send(gauge, "index_memberships", "Pairs of a block and an owner that holds it.", float64(index.Memberships))
	send(gauge, "index_bytes", "Memory reserved for the index.", float64(index.Bytes))
	send(gauge, "index_limit_bytes", "What index_bytes may come to; 0 is no limit.", float64(c.indexLimit))
	send(counter, "index_forgotten_total", "Memberships given up because the limit was reached.", float64(index.Forgotten))
	prefixes := c.prefixes.Stats()
	send(gauge, "prefix_map_chunks", "Chunks of learned texts.", float64(prefixes.Chunks))
	send(gauge, "prefix_map_bytes", "Memory of the learned texts.", float64(prefixes.Bytes))

	pool := c.pool.Stats(time.Now())
	send(gauge, "pool_workers", "Known workers, each rank once.", float64(pool.Workers))
	send(gauge, "pool_workers_ready", "Workers that requests may go to.", float64(pool.Ready))
	send(gauge, "pool_bookings", "Requests that this picker has sent out and not seen end.", float64(pool.Bookings))
	send(counter, "pool_picks_total", "Picks with a target.", float64(pool.Picked))
	send(counter, "pool_refusals_total", "Picks without a target.", float64(pool.Refused))
	handOffs := prometheus.NewDesc("kvlane_pool_hand_offs_total",
		"Picks in a pool with prefill workers, by why the prompt is prefilled on one (remote) or not.", []string{"reason"}, nil)
	for h := picker.HandOffRemote; h < picker.NumHandOffs; h++ {
		ch <- prometheus.MustNewConstMetric(handOffs, counter, float64(pool.HandOffs[h]), h.String())
	}
	send(gauge, "pool_sessions", "Sessions whose last worker is remembered.", float64(pool.Sessions))
	send(gauge, "pool_workers_ejected", "Workers that are out for their failures.", float64(pool.Ejected))
	send(counter, "pool_ejections_total", "Times that a worker was put out for its failures.", float64(pool.Ejections))
	send(counter, "pool_ejections_held_total", "Failures that would have put out more workers than picker.ejectShare.", float64(pool.Kept))
	send(counter, "pool_ejected_picks_total", "Picks of an ejected worker because there was no other.", float64(pool.Resorted))
	failures := prometheus.NewDesc("kvlane_pool_failures_total", "Requests that a worker failed, by how that was seen.", []string{"blame"}, nil)
	for b, n := range pool.Failures {
		ch <- prometheus.MustNewConstMetric(failures, counter, float64(n), picker.Blame(b).String())
	}
	send(counter, "pool_expired_bookings_total", "Bookings that nobody closed within their lease.", float64(pool.Expired))

	send(gauge, "replicas_bookings", "Requests that other replicas have announced and that are not over.", float64(pool.Shared))
	send(counter, "replicas_announced_total", "Announcements of this picker's bookings.", float64(pool.Announced))
	send(counter, "replicas_heard_total", "Announcements of other replicas that were taken over.", float64(pool.Heard))
	send(counter, "replicas_late_total", "Announcements of other replicas that came after a newer one or the end.", float64(pool.Late))
	send(counter, "replicas_uncounted_total", "Announcements of other replicas whose name was taken, or for which there was no room.",
		float64(pool.Clashes+pool.Overflow))
	send(counter, "replicas_lapsed_total", "Bookings of other replicas that nobody closed or announced again.", float64(pool.Lapsed))

	collectTiming(ch, &pool)

	log := c.log()
	connected := 0.0
	if log.Connected {
		connected = 1
	}
	send(gauge, "log_connected", "1 while the log can be read and written; 0 while this picker goes on from what it knows.", connected)
	send(gauge, "log_lag_seconds", "Age of the newest record when it was read.", log.LagMs/1000)
	send(counter, "log_records_total", "Records read from the log.", float64(log.Records))
	send(counter, "log_bookings_total", "Bookings among them, of all pickers.", float64(c.follower.bookings.Load()))
	send(counter, "log_gaps_total", "Records that showed that earlier ones were lost.", float64(log.Gaps))
	send(counter, "log_fenced_total", "Records of writers that another one has replaced.", float64(log.Fenced))
	send(counter, "log_faulty_records_total", "Records that the index refused for another reason.", float64(log.Faulty))
	send(counter, "log_dropped_records_total", "Bookings of this picker that the log did not take in time.", float64(log.Dropped+pool.Unsent))

	requests, queue, ejected, failed := map[string]float64{}, map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, w := range pool.PerWorker { // a worker's ranks together: one series for each worker
		requests[string(w.Worker)] += float64(w.Requests)
		queue[string(w.Worker)] = max(queue[string(w.Worker)], w.QueueMs/1000)
		failed[string(w.Worker)] += float64(w.Failures)
		if w.EjectedMs > 0 {
			ejected[string(w.Worker)]++
		}
	}
	for worker, n := range requests {
		send(gauge, "worker_requests", "Requests running and waiting on a worker.", n, worker)
		send(gauge, "worker_ejected", "Ranks of a worker that are out for their failures.", ejected[worker], worker)
		send(counter, "worker_failures_total", "Requests that a worker failed since it is in the pool.", failed[worker], worker)
		send(gauge, "worker_queue_seconds", "Predicted time until a new request's prefill starts.", queue[worker], worker)
	}
}

// collectTiming sends what predictions rest on: how many workers' load is not known, and
// the step times in use. Its labels are known deployments, roles,
// and a few kinds.
func collectTiming(ch chan<- prometheus.Metric, pool *picker.PoolStats) {
	const unreported = "Ready workers whose load is not known; the mean of the others is assumed there."
	ch <- prometheus.MustNewConstMetric(
		prometheus.NewDesc("kvlane_pool_workers_unreported", unreported, nil, nil), prometheus.GaugeValue, float64(pool.Unreported))
	for i := range pool.Classes {
		c := &pool.Classes[i]
		labels := []string{c.Deployment, c.Role.String(), strconv.Itoa(c.Kind)}
		send := func(name, help string, v float64, more ...string) {
			names := []string{"deployment", "role", "kind"}
			if len(more) > 0 {
				names = append(names, "constant")
			}
			desc := prometheus.NewDesc("kvlane_timing_"+name, help, names, nil)
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, slices.Concat(labels, more)...)
		}
		const constant = "Step times in use: seconds a prefill step (a), token (b), squared token (g), decode step (d), sequence (e), context token (f)."
		p, d := c.Model.Prefill, c.Model.Decode
		for _, v := range []struct {
			name string
			ms   float64
		}{{"a", p.A}, {"b", p.B}, {"g", p.G}, {"d", d.D}, {"e", d.E}, {"f", d.F}} {
			send("constant_seconds", constant, v.ms/1000, v.name)
		}
		learned := 0.0
		if c.Learned {
			learned = 1
		}
		send("workers", "Workers that share these step times.", float64(c.Workers))
		send("learned", "1 if the step times come from observations, 0 if they are those of the deployment.", learned)
		send("confidence", "How far the estimate is to be preferred to the deployment's constants, 0 to 1.", c.Confidence)
		send("error_ratio", "Mean relative error of the estimate in what it was told next.", c.Error)
		send("samples", "Observations taken in of the workers that are there.", float64(c.Samples))
		send("rejected_samples", "Observations refused of the workers that are there.", float64(c.Rejected))
	}
}
