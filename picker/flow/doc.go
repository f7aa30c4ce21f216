// Package flow is the queue of requests that no worker has room for now: who
// waits, who is next, and who has to go.
//
// [Queue.Pump] offers the waiting requests in this order:
//
//   - Bands of equal priority, strictly: nobody is offered while somebody of a
//     higher band, whom the same workers could serve, waits.
//   - Within a band the tenants that were released no more than the mean of them of
//     late ([Config].Burst) come before the others, who may also use less of the
//     workers' limits ([Queue.Over]).
//   - Within these the tenants take turns by deficit round robin. A request costs
//     its uncached tokens, so that a tenant of long prompts gets no more of the
//     workers' time than one of short ones. Two tenants that both wait all the time
//     differ by less than a quantum and one request.
//   - Within a tenant the earliest deadline, then the first come.
//
// A request that is offered and not taken holds up its lane, the requests that the
// same workers serve, and no other one. The lanes of a band take turns.
//
// The queue is bounded in requests and bytes, in all and, if wanted, for each band.
// When it is full, a newcomer pushes out the newest request of the tenant that
// holds most in the lowest band, if that is below its own. In its own band it can
// only push out requests of the tenant that holds most, and only as long as that
// one still holds no less than the newcomer's tenant afterwards: who floods the queue
// loses first. What a tenant holds is the larger of its shares of the requests and
// of the bytes. A request that finds no place is refused, and nobody is pushed out
// for it.
//
// Invariants: no limit is exceeded between two calls; every request that was
// queued leaves exactly once, by Pump, Cancel, Expire or pushed out by a Push; what
// is kept is bounded by the requests that wait, and a tenant without one is
// forgotten.
//
// What it does not do: it does not decide whether a worker has room, holds no
// bodies, and has no clock. It is not safe for concurrent use.
package flow
