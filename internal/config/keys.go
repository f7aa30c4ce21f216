package config

import (
	"github.com/kvlane/kvlane/extproc"
	"github.com/kvlane/kvlane/extproc/scoring"
	"github.com/kvlane/kvlane/picker"
)

// keys are the names of the file. A test compares them with the struct's tags.
func (c *Config) keys() []key {
	return []key{
		section("picker", pickerKeys(&c.Picker)...),
		section("extproc", extprocKeys(&c.ExtProc)...),
		section("index",
			value("maxBytes", &c.Index.MaxBytes),
			value("prefixMapBytes", &c.Index.PrefixMapBytes),
		),
		section("log",
			value("level", &c.Log.Level),
			value("format", &c.Log.Format),
			value("redis", &c.Log.Redis),
			value("pool", &c.Log.Pool),
		),
		sections("rewrites", &c.Rewrites, picker.Rewrite{}, func(r *picker.Rewrite) []key {
			return []key{
				value("model", &r.Model),
				sections("targets", &r.Targets, picker.RewriteTarget{Weight: 1}, func(t *picker.RewriteTarget) []key {
					return []key{value("model", &t.Model), value("weight", &t.Weight)}
				}),
			}
		}),
		sections("scorers", &c.Scorers, scoring.Config{Deadline: scoring.DefaultDeadline}, func(s *scoring.Config) []key {
			return []key{
				value("name", &s.Name), value("address", &s.Address), value("deadline", &s.Deadline),
				texts("headers", &s.Headers), value("tls", &s.TLS),
			}
		}),
		value("pprof", &c.Pprof),
	}
}

func pickerKeys(c *picker.Config) []key {
	return []key{
		value("policy", &c.Policy),
		value("alpha", &c.Alpha),
		value("maxDelay", &c.MaxDelay),
		value("chunkTokens", &c.ChunkTokens),
		value("fallbacks", &c.Fallbacks),
		value("maxRequests", &c.MaxRequests),
		value("maxQueueMs", &c.MaxQueueMs),
		value("maxKV", &c.MaxKV),
		value("sloTTFTMs", &c.SLOTTFTMs),
		value("sloTPOTMs", &c.SLOTPOTMs),
		value("missMs", &c.MissMs),
		value("adapterMs", &c.AdapterMs),
		value("hostBytesPerSecond", &c.HostBytesPerSecond),
		value("diskBytesPerSecond", &c.DiskBytesPerSecond),
		value("externalBytesPerSecond", &c.ExternalBytesPerSecond),
		value("domainBandwidth", &c.DomainBandwidth),
		value("rackBandwidth", &c.RackBandwidth),
		value("farBandwidth", &c.FarBandwidth),
		value("learn", &c.Learn),
		value("timeScale", &c.TimeScale),
		value("defaultDeployment", &c.DefaultDeployment),
		value("defaultLease", &c.DefaultLease),
		value("leaseGrace", &c.LeaseGrace),
		value("bookingLease", &c.BookingLease),
		value("replicaLease", &c.ReplicaLease),
		value("sessionMs", &c.SessionMs),
		value("sessionTTL", &c.SessionTTL),
		value("maxSessions", &c.MaxSessions),
		value("ejectAfter", &c.EjectAfter),
		value("ejectRate", &c.EjectRate),
		value("ejectTime", &c.EjectTime),
		value("maxEjectTime", &c.MaxEjectTime),
		value("ejectShare", &c.EjectShare),
		value("returnMs", &c.ReturnMs),
		value("returnTime", &c.ReturnTime),
		value("replica", &c.Replica),
	}
}

func extprocKeys(c *extproc.Config) []key {
	return []key{
		value("maxBodyBytes", &c.MaxBodyBytes),
		value("maxBufferedBytes", &c.MaxBufferedBytes),
		value("maxStreams", &c.MaxStreams),
		value("bodyIdleTimeout", &c.BodyIdleTimeout),
		value("bodyTimeout", &c.BodyTimeout),
		value("allowPolicyHeader", &c.AllowPolicyHeader),
		value("clearRouteCache", &c.ClearRouteCache),
		value("overloaded529", &c.Overloaded529),
		value("leaveStreaming", &c.LeaveStreaming),
		value("clientHints", &c.ClientHints),
		value("minPriority", &c.MinPriority),
		value("maxPriority", &c.MaxPriority),
		value("objectives", &c.Objectives),
		value("enginePriority", &c.EnginePriority),
		section("flow", flowKeys(&c.Flow)...),
		value("plans", &c.Plans),
	}
}

func flowKeys(c *extproc.FlowConfig) []key {
	return []key{
		value("enabled", &c.Enabled),
		section("queue",
			value("maxRequests", &c.Queue.MaxRequests),
			value("maxBytes", &c.Queue.MaxBytes),
			value("bandRequests", &c.Queue.BandRequests),
			value("bandBytes", &c.Queue.BandBytes),
			value("quantum", &c.Queue.Quantum),
			value("maxTenants", &c.Queue.MaxTenants),
			value("burst", &c.Queue.Burst),
			value("ttl", &c.Queue.TTL),
			value("shedHopeless", &c.Queue.ShedHopeless),
		),
		value("bufferedWait", &c.BufferedWait),
		value("drainTimeout", &c.DrainTimeout),
		value("tenantLabels", &c.TenantLabels),
	}
}
