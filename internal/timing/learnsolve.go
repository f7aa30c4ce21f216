package timing

import "math"

// matrix is symmetric; only its lower half is kept.
type matrix [constants][constants]float64

func (m *matrix) at(i, j int) float64 {
	if i < j {
		i, j = j, i
	}
	return m[i][j]
}

// priorInformation is the inverse of the prior covariance of the factors:
//
//	commonDeviation^2 everywhere + partDeviation^2 within prefill and within decode + ownDeviation^2 on the diagonal
//
// The matrix has so few distinct entries that the inverse has a closed form: on a
// part's differences it is 1/own^2, on the parts' sums what is left.
func priorInformation() matrix {
	own := ownDeviation * ownDeviation
	part := half * partDeviation * partDeviation
	common := constants * commonDeviation * commonDeviation
	// Eigenvalues of the covariance: sums of all, the parts against each other, within a part.
	all, parts, within := 1/(own+part+common), 1/(own+part), 1/own
	var m matrix
	for i := range m {
		for j := range i + 1 {
			same := (i < half) == (j < half)
			v := all / constants
			if same {
				v += parts/constants - within/half
			} else {
				v -= parts / constants
			}
			if i == j {
				v += within
			}
			m[i][j] = v
		}
	}
	return m
}

// solve is the x with m*x = y where the fixed elements of x are those of at; root is
// the factor of m without them. False if m is not positive enough.
func (m *matrix) solve(y, at vector, fixed [constants]bool) (x vector, root matrix, ok bool) {
	for i := range m {
		if fixed[i] {
			continue
		}
		for j := range at {
			if fixed[j] {
				y[i] -= m.at(i, j) * at[j]
			}
		}
	}
	root, ok = m.root(fixed)
	if !ok {
		return x, root, false
	}
	for i := range x { // forwards, then backwards
		if fixed[i] {
			continue
		}
		sum := y[i]
		for j := range i {
			sum -= root[i][j] * x[j]
		}
		x[i] = sum / root[i][i]
	}
	for i := constants - 1; i >= 0; i-- {
		if fixed[i] {
			x[i] = 0
			continue
		}
		sum := x[i]
		for j := i + 1; j < constants; j++ {
			sum -= root[j][i] * x[j]
		}
		x[i] = sum / root[i][i]
		if math.IsNaN(x[i]) || math.IsInf(x[i], 0) {
			return x, root, false
		}
	}
	for i := range x {
		if fixed[i] {
			x[i] = at[i]
		}
	}
	return x, root, true
}

// root is Cholesky's: the lower triangular matrix whose product with its
// transpose is m, with the identity in place of the fixed rows.
func (m *matrix) root(fixed [constants]bool) (matrix, bool) {
	var r matrix
	for i := range m {
		if fixed[i] {
			r[i][i] = 1
			continue
		}
		for j := range i {
			if fixed[j] {
				continue
			}
			sum := m[i][j]
			for k := range j {
				sum -= r[i][k] * r[j][k]
			}
			r[i][j] = sum / r[j][j]
		}
		sum := m[i][i]
		for k := range i {
			sum -= r[i][k] * r[i][k]
		}
		if !(sum > 0) || math.IsInf(sum, 0) {
			return r, false
		}
		r[i][i] = math.Sqrt(sum)
	}
	return r, true
}

// deviation is the standard deviation of the i-th element given the matrix whose root
// m is as information: the length of a column of m's inverse.
func (m *matrix) deviation(i int) float64 {
	var x vector
	sum := 0.0
	for k := i; k < constants; k++ {
		v := 0.0
		if k == i {
			v = 1
		}
		for j := i; j < k; j++ {
			v -= m[k][j] * x[j]
		}
		x[k] = v / m[k][k]
		sum += x[k] * x[k]
	}
	return math.Sqrt(sum)
}
