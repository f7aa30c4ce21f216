// Package logpb is the wire form of the embedded log. The messages carry
// records as bytes in the form of kvindex.AppendRecord; this package does not
// look into them. The code is generated from log.proto by protoc 3.21.12,
// protoc-gen-go v1.36.12 and protoc-gen-go-grpc v1.6.2, which must be on PATH.
package logpb

//go:generate protoc -I ../../.. --go_out=../../.. --go_opt=paths=source_relative --go-grpc_out=../../.. --go-grpc_opt=paths=source_relative kvindex/memlog/logpb/log.proto
