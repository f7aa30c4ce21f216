package memlog

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/kvlane/kvlane/kvindex"
	"github.com/kvlane/kvlane/kvindex/memlog/logpb"
)

// Silence is how long a client's tail waits for a message before it takes the
// log for dead: four beats of the server's default.
const Silence = 20 * time.Second

// maxMessage bounds what a client accepts: many times what a server sends, so
// that a server with larger pages can be read.
const maxMessage = 64 << 20

// A log that comes back should be found within about a second, however long it
// was away: gRPC's own pause grows to two minutes, and the workers would be
// missing for as long. A log whose machine vanished without a word is noticed by
// pings; without them writes go into the dead connection for many minutes.
const (
	reconnectFirst = 100 * time.Millisecond
	reconnectMost  = time.Second
	connectTimeout = time.Second
	pingAfter      = 10 * time.Second // the shortest that gRPC allows
	pingTimeout    = 5 * time.Second
)

var errSilent = errors.New("the log is silent")

// Client is a log on the other end of a gRPC connection. It is safe for
// concurrent use. The connection is made at the first call and made again after
// it broke; a broken Tail returns an error, and the caller tails anew.
type Client struct {
	conn    *grpc.ClientConn
	log     logpb.LogClient
	id      atomic.Uint64
	silence time.Duration
}

// Dial makes a client for a gRPC target such as "127.0.0.1:9004", in plain text
// unless an option says otherwise. It does not connect yet.
func Dial(target string, opts ...grpc.DialOption) (*Client, error) {
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: reconnectFirst, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnectMost},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}),
	}, opts...)
	conn, err := grpc.NewClient(target, opts...)
	if err != nil {
		return nil, fmt.Errorf("dial log %s: %w", target, err)
	}
	return &Client{conn: conn, log: logpb.NewLogClient(conn), silence: Silence}, nil
}

// Close ends the connection and with it all running calls.
func (c *Client) Close() error {
	if err := c.conn.Close(); err != nil {
		return fmt.Errorf("close log: %w", err)
	}
	return nil
}

// LogID is the id of the log that answered last; 0 before the first answer. When
// it changes, the log was restarted and is empty: a writer then sends all it
// has, also for owners that have nothing new to say.
func (c *Client) LogID() uint64 { return c.id.Load() }

// Append implements [kvindex.Log]. A large batch travels in several messages; an
// error other than a *kvindex.GapError or kvindex.ErrFenced leaves open how
// many records were written (sending them again is safe).
func (c *Client) Append(ctx context.Context, records []kvindex.Record) error {
	for _, page := range pages(records) {
		resp, err := c.log.Append(ctx, &logpb.AppendRequest{Records: encode(page)})
		if err != nil {
			return fmt.Errorf("append to log: %w", err)
		}
		c.id.Store(resp.GetLogId())
		switch f := resp.GetFault().(type) {
		case *logpb.AppendResponse_Gap:
			return &kvindex.GapError{Owner: decodeOwner(f.Gap.GetOwner()), Want: f.Gap.GetWant(), Got: f.Gap.GetGot()}
		case *logpb.AppendResponse_Fenced:
			return fmt.Errorf("owner %s: %w", decodeOwner(f.Fenced.GetOwner()), kvindex.ErrFenced)
		}
	}
	return nil
}

// CheckpointDue implements [kvindex.Log]: never, see [Log.CheckpointDue].
func (c *Client) CheckpointDue(kvindex.WorkerID) bool { return false }

// Checkpoint implements [kvindex.Log]; there is nothing to do.
func (c *Client) Checkpoint(context.Context, []kvindex.Record) error { return nil }

// Tail implements [kvindex.Log].
func (c *Client) Tail(ctx context.Context, apply func([]kvindex.Record) error) error {
	return c.tail(ctx, &logpb.TailRequest{}, apply)
}

// Members implements [kvindex.Log]. A server of an earlier version sends
// everything; then the rest is left out here.
func (c *Client) Members(ctx context.Context, apply func([]kvindex.Record) error) error {
	return c.tail(ctx, &logpb.TailRequest{Members: true}, func(records []kvindex.Record) error {
		members := onlyMembers(records)
		if len(members) == 0 && len(records) > 0 {
			return nil
		}
		return apply(members)
	})
}

func (c *Client) tail(ctx context.Context, req *logpb.TailRequest, apply func([]kvindex.Record) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(c.silence, func() { cancel(errSilent) })
	defer watch.Stop()
	stream, err := c.log.Tail(ctx, req)
	if err != nil {
		return tailError(ctx, err)
	}
	complete := false // an empty message: the first ends the present state, the others are beats
	for {
		resp, err := stream.Recv()
		if err != nil {
			return tailError(ctx, err)
		}
		c.id.Store(resp.GetLogId())
		records, err := decode(resp.GetRecords())
		if err != nil {
			return fmt.Errorf("tail log: %w", err)
		}
		watch.Stop() // the time that apply takes is not the log's silence
		if len(records) > 0 || !complete {
			complete = complete || len(records) == 0
			if err := apply(records); err != nil {
				return fmt.Errorf("apply batch: %w", err)
			}
		}
		watch.Reset(c.silence)
	}
}

// tailError prefers why the context ended to gRPC's view of it. The server has
// the caller's deadline too and may end the stream a moment before our own timer.
func tailError(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case cause != nil:
		err = cause
	case status.Code(err) == codes.DeadlineExceeded:
		err = context.DeadlineExceeded
	}
	return fmt.Errorf("tail log: %w", err)
}

// Snapshot reads the present state of one worker, or of all if worker is empty,
// without the learned texts.
func (c *Client) Snapshot(ctx context.Context, worker kvindex.WorkerID) ([]kvindex.Record, error) {
	var all []kvindex.Record
	req := &logpb.SnapshotRequest{Worker: string(worker)}
	for {
		resp, err := c.log.Snapshot(ctx, req)
		if err != nil {
			return nil, fmt.Errorf("read log's snapshot: %w", err)
		}
		c.id.Store(resp.GetLogId())
		records, err := decode(resp.GetRecords())
		if err != nil {
			return nil, fmt.Errorf("read log's snapshot: %w", err)
		}
		all = append(all, records...)
		if resp.GetNext() == "" {
			return all, nil
		}
		req.After = resp.GetNext()
	}
}
