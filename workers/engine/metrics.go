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

// ParseMetrics reads a page in Prometheus text format, with the names of vLLM, SGLang
// or TensorRT-LLM. Lines that are not
// samples, and samples that are not finite, are passed over: a page that is not
// a metrics page says nothing.
func ParseMetrics(page []byte) Metrics {
	m := UnknownMetrics()
	oldUsage := -1.0
	for len(page) > 0 {
		line, rest, whole := bytes.Cut(page, []byte("\n"))
		page = rest
		if !whole && len(rest) == 0 && !bytes.Contains(line, []byte(" ")) {
			break // cut in a line
		}
		name, labels, value, ok := parseSample(string(line))
		if !ok {
			continue
		}
		switch name {
		case "vllm:num_requests_running", "sglang:num_running_reqs", "trtllm_num_requests_running":
			addCount(&m.Running, value)
		case "vllm:num_requests_waiting", "sglang:num_queue_reqs", "trtllm_num_requests_waiting":
			addCount(&m.Waiting, value)
		case "vllm:kv_cache_usage_perc", "sglang:token_usage", "trtllm_kv_cache_utilization":
			m.KVUsage = max(m.KVUsage, share(value))
		case "vllm:gpu_cache_usage_perc": // the name before vLLM 0.10
			oldUsage = max(oldUsage, share(value))
		case "vllm:cache_config_info":
			if n := intLabel(labels, "block_size"); n > 0 {
				m.BlockSize = n
			}
			m.KVBlocks = min(m.KVBlocks+intLabel(labels, "num_gpu_blocks"), math.MaxInt32)
		case "sglang:cache_config_info":
			if n := intLabel(labels, "page_size"); n > 0 {
				m.BlockSize = n
			}
			m.KVBlocks = min(m.KVBlocks+intLabel(labels, "num_pages"), math.MaxInt32)
		case "trtllm_kv_cache_tokens_per_block":
			if value >= 1 && value <= math.MaxInt32 {
				m.BlockSize = int(value)
			}
		case "trtllm_kv_cache_max_blocks":
			addCount(&m.KVBlocks, value)
		case "process_start_time_seconds":
			if value > 0 && value < math.MaxInt32*10 {
				m.StartedAt = time.UnixMilli(int64(value * 1000))
			}
		}
	}
	if m.KVUsage < 0 {
		m.KVUsage = oldUsage
	}
	return m
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

// parseSample splits `name{labels} value [timestamp]`.
func parseSample(line string) (name, labels string, value float64, ok bool) {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' || line[0] == '<' {
		return "", "", 0, false
	}
	if before, after, ok := strings.Cut(line, "{"); ok {
		end := strings.LastIndexByte(after, '}')
		if end < 0 {
			return "", "", 0, false
		}
		name, labels, line = before, after[:end], after[end+1:]
	} else {
		name, line, _ = strings.Cut(line, " ")
	}
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return "", "", 0, false
	}
	value, err := strconv.ParseFloat(fields[0], 64)
	if err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
		return "", "", 0, false
	}
	return name, labels, value, true
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
