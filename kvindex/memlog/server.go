package memlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog/logpb"
)

// Register serves the log as kvlane.log.v1.Log. Clients append in messages of
// about 1 MiB, at most [MaxRecordBytes] for a single record, so gRPC's default
// limits do. Tails run until their clients leave or the server stops; a graceful
// stop would wait for them.
func Register(r grpc.ServiceRegistrar, l *Log) {
	logpb.RegisterLogServer(r, &service{log: l})
}

// ServerOptions are the gRPC settings that fit the clients: their pings are
// welcome, which gRPC by default takes for an attack.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAfter / 2, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * pingAfter, Timeout: pingTimeout}),
	}
}

type service struct {
	logpb.UnimplementedLogServer
	log *Log
}

// Append implements the service.
func (s *service) Append(_ context.Context, req *logpb.AppendRequest) (*logpb.AppendResponse, error) {
	records, err := decode(req.GetRecords())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	n, err := s.log.append(records)
	resp := &logpb.AppendResponse{LogId: s.log.id, Accepted: uint32(n)}
	var gap *kvindex.GapError
	switch {
	case err == nil:
	case errors.As(err, &gap):
		resp.Fault = &logpb.AppendResponse_Gap{Gap: &logpb.Gap{Owner: encodeOwner(gap.Owner), Want: gap.Want, Got: gap.Got}}
	case errors.Is(err, kvindex.ErrFenced):
		resp.Fault = &logpb.AppendResponse_Fenced{Fenced: &logpb.Fenced{Owner: encodeOwner(records[n].Owner)}}
	default:
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return resp, nil
}

// Tail implements the service.
func (s *service) Tail(req *logpb.TailRequest, stream grpc.ServerStreamingServer[logpb.TailResponse]) error {
	beat := time.NewTicker(s.log.opts.Beat)
	defer beat.Stop()
	err := s.log.tail(stream.Context(), req.GetMembers(), beat.C, func(batch []kvindex.Record) error {
		if len(batch) == 0 {
			return stream.Send(&logpb.TailResponse{LogId: s.log.id})
		}
		for _, page := range pages(batch) {
			if err := stream.Send(&logpb.TailResponse{LogId: s.log.id, Records: encode(page)}); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, ErrBehind) {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	return err
}

// Snapshot implements the service.
func (s *service) Snapshot(_ context.Context, req *logpb.SnapshotRequest) (*logpb.SnapshotResponse, error) {
	resp := &logpb.SnapshotResponse{LogId: s.log.id}
	if w := req.GetWorker(); w != "" {
		resp.Records = encode(s.log.Snapshot(kvindex.WorkerID(w)))
		return resp, nil
	}
	records, next := s.log.page(kvindex.WorkerID(req.GetAfter()))
	resp.Records, resp.Next = encode(records), string(next)
	return resp, nil
}

// page is the state of the workers behind after, until a page is full: whole
// workers only. next is the last of them if there are more.
func (l *Log) page(after kvindex.WorkerID) (records []kvindex.Record, next kvindex.WorkerID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	size, done := 0, 0
	for _, name := range l.names() {
		if name <= after {
			continue
		}
		if size > pageBytes {
			return records, next
		}
		next = name
		records = l.workers[name].snapshot(records)
		for ; done < len(records); done++ {
			size += recordBytes(&records[done])
		}
	}
	return records, ""
}

func encode(records []kvindex.Record) [][]byte {
	out := make([][]byte, len(records))
	for i := range records {
		out[i] = kvindex.AppendRecord(nil, &records[i])
	}
	return out
}

func decode(records [][]byte) ([]kvindex.Record, error) {
	out := make([]kvindex.Record, len(records))
	for i, b := range records {
		r, err := kvindex.DecodeRecord(b)
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", i, err)
		}
		out[i] = r
	}
	return out, nil
}

func encodeOwner(o kvindex.Owner) *logpb.Owner {
	return &logpb.Owner{Worker: string(o.Worker), Rank: uint32(o.Rank), Tier: uint32(o.Tier)}
}

func decodeOwner(o *logpb.Owner) kvindex.Owner {
	return kvindex.Owner{
		Worker: kvindex.WorkerID(o.GetWorker()),
		Rank:   uint16(o.GetRank()),
		Tier:   kvindex.Tier(o.GetTier()),
	}
}
