package config

// Nearest returns the candidate with the fewest typing mistakes from word, or "" when none
// is near enough to be meant.
func Nearest(word string, candidates []string) string {
	best, least := "", 0
	for _, c := range candidates {
		limit := max(1, min(len(word), len(c))/3)
		if d := distance(word, c); d <= limit && (best == "" || d < least) {
			best, least = c, d
		}
	}
	return best
}

// distance counts the letters to insert, remove, replace, or swap with their neighbour.
func distance(a, b string) int {
	older, old, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		older, old, row = old, row, older
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replace := old[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			row[j] = min(replace, old[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], older[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
