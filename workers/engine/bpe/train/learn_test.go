package main

import (
	"fmt"
	"testing"
)

func TestLearn(t *testing.T) {
	// "ab" is in both words (5 times), then "abc" (4), then " abc" (3).
	// Afterwards only single-symbol words and "ab" remain.
	got := fmt.Sprintf("%q", learn(map[string]int{"\x20abc": 3, "abc": 1, "ab": 1}, 10))
	const want = `[["a" "b"] ["ab" "c"] [" " "abc"]]`
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestLearnNoTokenTwice(t *testing.T) {
	// "abc" first arises as a+bc; ab+c would give the same text and is left.
	got := fmt.Sprintf("%q", learn(map[string]int{"bc": 9, "abc": 5, "ab": 4, "xab": 4}, 20))
	seen := make(map[string]bool)
	for _, m := range learn(map[string]int{"bc": 9, "abc": 5, "ab": 4, "xab": 4}, 20) {
		if seen[m[0]+m[1]] {
			t.Errorf("%q is made twice in %s", m[0]+m[1], got)
		}
		seen[m[0]+m[1]] = true
	}
}

func TestLearnOverlap(t *testing.T) {
	got := fmt.Sprintf("%q", learn(map[string]int{"aaaa": 2, "aaa": 1}, 3))
	const want = `[["a" "a"] ["aa" "aa"] ["aa" "a"]]`
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
