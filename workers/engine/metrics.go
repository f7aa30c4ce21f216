package engine

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"
)

// Metrics are the figures of a metrics page that the agent uses.
type Metrics struct {
	// Running and Waiting are requests, summed over the engines of the page; -1 if
	// the page does not say.
	Running, Waiting int
	// KVUsage is the share of KV blocks in use, 0 to 1, the largest of the page's
	// engines (a request runs on one of them and the fullest is where it would
	// suffer); -1 if the page does not say.
	KVUsage float64
	// BlockSize is in tokens and KVBlocks the device capacity in blocks, summed
	// over the engines; 0 if the page does not say.
	BlockSize, KVBlocks int
	// StartedAt is when the process started; zero if the page does not say.
	StartedAt time.Time
}

// Loaded reports whether the page says what the engine has to do.
func (m *Metrics) Loaded() bool { return m.Running >= 0 && m.Waiting >= 0 }

// UnknownMetrics is what an empty page says.
func UnknownMetrics() Metrics { return Metrics{Running: -1, Waiting: -1, KVUsage: -1} }

// figure is what a series of a metrics page says.
type figure uint8

const (
	noFigure figure = iota
	running
	waiting
	usage
	oldUsage // of vLLM before 0.10
	vllmCache
	sglangCache
	blockSize
	blocks
	started
)

// figureOf knows the names of vLLM, SGLang and TensorRT-LLM.
func figureOf(name []byte) figure {
	switch string(name) {
	case "vllm:num_requests_running", "sglang:num_running_reqs", "trtllm_num_requests_running":
		return running
	case "vllm:num_requests_waiting", "sglang:num_queue_reqs", "trtllm_num_requests_waiting":
		return waiting
	case "vllm:kv_cache_usage_perc", "sglang:token_usage", "trtllm_kv_cache_utilization":
		return usage
	case "vllm:gpu_cache_usage_perc":
		return oldUsage
	case "vllm:cache_config_info":
		return vllmCache
	case "sglang:cache_config_info":
		return sglangCache
	case "trtllm_kv_cache_tokens_per_block":
		return blockSize
	case "trtllm_kv_cache_max_blocks":
		return blocks
	case "process_start_time_seconds":
		return started
	default:
		return noFigure
	}
}

// ParseMetrics reads a page in Prometheus text format. Lines that are not samples, and
// samples that are not finite, are passed over: a page that is not a metrics page says
// nothing. Most lines of a page are of no interest; they cost little.
func ParseMetrics(page []byte) Metrics {
	m := UnknownMetrics()
	old := -1.0
	for len(page) > 0 {
		line, rest, whole := bytes.Cut(page, []byte("\n"))
		page = rest
		if !whole && len(rest) == 0 && !bytes.Contains(line, []byte(" ")) {
			break // cut in a line
		}
		line = bytes.TrimSpace(line)
		f := figureOf(line[:max(0, bytes.IndexAny(line, "{ "))])
		if f == noFigure {
			continue
		}
		labels, value, ok := parseSample(string(line))
		switch {
		case !ok:
		case f == oldUsage:
			old = max(old, share(value))
		default:
			m.take(f, labels, value)
		}
	}
	if m.KVUsage < 0 {
		m.KVUsage = old
	}
	return m
}

// take adds what one sample says.
func (m *Metrics) take(f figure, labels string, value float64) {
	switch f {
	case running:
		addCount(&m.Running, value)
	case waiting:
		addCount(&m.Waiting, value)
	case usage:
		m.KVUsage = max(m.KVUsage, share(value))
	case vllmCache:
		m.cache(intLabel(labels, "block_size"), intLabel(labels, "num_gpu_blocks"))
	case sglangCache:
		m.cache(intLabel(labels, "page_size"), intLabel(labels, "num_pages"))
	case blockSize:
		if value >= 1 && value <= math.MaxInt32 {
			m.BlockSize = int(value)
		}
	case blocks:
		addCount(&m.KVBlocks, value)
	case started:
		if value > 0 && value < math.MaxInt32*10 {
			m.StartedAt = time.UnixMilli(int64(value * 1000))
		}
	default: // the caller's
	}
}

// cache adds one engine's cache, 0 for what its sample does not say.
func (m *Metrics) cache(size, n int) {
	if size > 0 {
		m.BlockSize = size
	}
	m.KVBlocks = min(m.KVBlocks+n, math.MaxInt32)
}

func addCount(sum *int, v float64) {
	if v < 0 || v > math.MaxInt32 {
		return
	}
	*sum = min(max(*sum, 0)+int(v), math.MaxInt32)
}

func share(v float64) float64 {
	if v < 0 || v > 1 {
		return -1
	}
	return v
}

// parseSample reads `name{labels} value [timestamp]`.
func parseSample(line string) (labels string, value float64, ok bool) {
	if before, after, braced := strings.Cut(line, "{"); braced && !strings.Contains(before, " ") {
		end := strings.LastIndexByte(after, '}')
		if end < 0 {
			return "", 0, false
		}
		labels, line = after[:end], after[end+1:]
	} else {
		_, line, _ = strings.Cut(line, " ")
	}
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return "", 0, false
	}
	value, err := strconv.ParseFloat(fields[0], 64)
	if err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
		return "", 0, false
	}
	return labels, value, true
}

// intLabel is the label's value as a number, 0 if it is absent or not a number
// of 0 to 2^31-1.
func intLabel(labels, name string) int {
	for labels != "" {
		key, rest, ok := strings.Cut(labels, `="`)
		if !ok {
			return 0
		}
		text, rest, ok := strings.Cut(rest, `"`)
		if !ok {
			return 0
		}
		if strings.Trim(key, " ,") == name {
			n, err := strconv.ParseInt(text, 10, 32)
			if err != nil || n < 0 {
				return 0
			}
			return int(n)
		}
		labels = rest
	}
	return 0
}
