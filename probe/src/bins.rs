//! The bins of remaining length that the probe classifies into (TRAIL section 3.1; there they are
//! equal).

/// Largest number of bins: the logits of a row are at most four 64-byte lines.
pub const MAX_BINS: usize = 64;

/// Largest end of the last bin, tokens. Products with a number of bins are exact in `f64`.
pub const MAX_TOKENS: u32 = 1 << 24;

/// The fractions at which quantiles are taken.
pub const QUANTILES: [f32; 3] = [0.1, 0.5, 0.9];

/// Adjacent bins over 0..=max_tokens: bin i is [edges\[i\], edges\[i + 1\]), the last one closed.
/// Every bin is at least one token wide, and the last edge is a whole number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bins {
    /// 1..=[`MAX_BINS`].
    count: usize,
    /// Tokens, `[count + 1]`; further entries are zero.
    edges: [f64; MAX_BINS + 1],
    /// Width of equal bins. A position in such a bin is one product with it, rounded once; the
    /// difference of two edges would be rounded three times.
    equal: Option<f64>,
}

impl Default for Bins {
    /// The paper's: 10 bins over 512 tokens, 51.2 tokens wide.
    fn default() -> Bins {
        Bins::equal(10, 512)
    }
}

impl Bins {
    /// `count` bins of equal width over `max_tokens` tokens. Panics unless 1 <= `count` <=
    /// [`MAX_BINS`] and `count` <= `max_tokens` <= [`MAX_TOKENS`].
    pub fn equal(count: usize, max_tokens: u32) -> Bins {
        check_sizes(count, max_tokens);
        let max_tokens = f64::from(max_tokens);
        let mut edges = [0.0; MAX_BINS + 1];
        for (i, edge) in edges[..=count].iter_mut().enumerate() {
            // One division, correctly rounded: no boundary moves onto a whole number or off it.
            *edge = max_tokens * i as f64 / count as f64;
        }
        Bins { count, edges, equal: Some(max_tokens / count as f64) }
    }

    /// `count` bins over `max_tokens` tokens whose widths grow by one factor from 1 token on, the
    /// edges then rounded to whole tokens. Panics as [`Bins::equal`].
    pub fn log(count: usize, max_tokens: u32) -> Bins {
        check_sizes(count, max_tokens);
        // Edge i + 1 is 1 + factor * edge i. The factor lies between `low`, whose last edge is not
        // above max_tokens, and `high`; halving ends where no f64 is left between the two.
        let last = |factor: f64| (0..count).fold(0.0, |edge, _| 1.0 + factor * edge);
        let (mut low, mut high) = (1.0, f64::from(max_tokens) + 1.0);
        for _ in 0..100 {
            let middle = 0.5 * (low + high);
            let bound = if last(middle) <= f64::from(max_tokens) { &mut low } else { &mut high };
            *bound = middle;
        }
        let mut edges = [0.0; MAX_BINS + 1];
        let mut edge = 0.0;
        for to in &mut edges[1..count] {
            edge = 1.0 + low * edge;
            // Edges that are at least 1 apart still are after rounding.
            *to = f64::round(edge);
        }
        edges[count] = max_tokens.into();
        Bins::from_edges(&edges[..=count]).expect("whole edges that increase")
    }

    /// The bins between consecutive `edges`, in tokens. The error says what is wrong unless there
    /// are 2 to [`MAX_BINS`] + 1 edges, the first 0, each at least 1 above the one before, the last
    /// a whole number of at most [`MAX_TOKENS`].
    pub fn from_edges(edges: &[f64]) -> Result<Bins, String> {
        if !(2..=MAX_BINS + 1).contains(&edges.len()) {
            return Err(format!("{} edges, not 2 to {}", edges.len(), MAX_BINS + 1));
        }
        let (count, last) = (edges.len() - 1, edges[edges.len() - 1]);
        if edges[0] != 0.0 {
            return Err(format!("{} as the first edge, not 0", edges[0]));
        }
        let is_apart = |pair: &[f64]| pair[1] - pair[0] >= 1.0;
        if let Some(pair) = edges.windows(2).find(|pair| !is_apart(pair)) {
            return Err(format!("an edge at {} after {}, not at least 1 above", pair[1], pair[0]));
        }
        if last > MAX_TOKENS.into() || last.fract() != 0.0 {
            return Err(format!("{last} as the last edge, not a whole number up to {MAX_TOKENS}"));
        }
        let equal = Bins::equal(count, last as u32);
        if equal.edges() == edges {
            return Ok(equal);
        }
        let mut own = [0.0; MAX_BINS + 1];
        own[1..=count].copy_from_slice(&edges[1..]);
        Ok(Bins { count, edges: own, equal: None })
    }

    /// Number of bins, 1..=[`MAX_BINS`].
    pub fn count(&self) -> usize {
        self.count
    }

    /// Tokens at the end of the last bin; longer remainders count as this.
    pub fn max_tokens(&self) -> u32 {
        self.edges[self.count] as u32
    }

    /// The boundaries in tokens, `[count + 1]`: 0 first, max_tokens last.
    pub fn edges(&self) -> &[f64] {
        &self.edges[..=self.count]
    }

    /// Tokens at the beginning of bin `i`.
    pub fn lower(&self, i: usize) -> f64 {
        self.edges()[i]
    }

    /// Tokens in bin `i`, not rounded: 51.2 for the paper's.
    pub fn width(&self, i: usize) -> f64 {
        self.equal.unwrap_or_else(|| self.edges()[i + 1] - self.edges()[i])
    }

    /// Tokens at the middle of bin `i`.
    pub fn midpoint(&self, i: usize) -> f64 {
        self.position(i, 0.5)
    }

    /// The bin of `remaining` tokens.
    pub fn bin_of(&self, remaining: u32) -> usize {
        let inner = &self.edges[1..self.count];
        inner.partition_point(|&edge| edge <= f64::from(remaining))
    }

    /// Tokens that a request of `generated` tokens has left of the longest answer; without bound
    /// for one that is older.
    pub fn left(&self, generated: u32) -> f32 {
        match self.max_tokens().saturating_sub(generated) {
            0 => f32::INFINITY,
            left => left as f32,
        }
    }

    /// Moves what `q` `[count]` has beyond `left` tokens to the bin in which they end.
    pub fn cut(&self, q: &mut [f32], left: f32) {
        let (last, beyond) = q[self.bin_of(left as u32)..].split_first_mut().expect("a bin");
        *last += beyond.iter().sum::<f32>();
        beyond.fill(0.0);
    }

    /// As [`Bins::expected`], of an answer that is cut after `left` tokens.
    pub fn expected_until(&self, q: &[f32], left: f32) -> f32 {
        let (mut mass, mut moment) = (0.0, 0.0);
        for (i, &q) in self.checked(q).iter().enumerate() {
            mass += f64::from(q);
            moment += f64::from(q) * self.midpoint(i).min(left.into());
        }
        (moment / mass) as f32
    }

    /// Expected remaining tokens under `q` (`[count]`, any positive sum): the mean of the
    /// midpoints.
    pub fn expected(&self, q: &[f32]) -> f32 {
        self.expected_until(q, f32::INFINITY)
    }

    /// Tokens below which the fraction `p` of `q`'s mass lies (`q` is `[count]`, any positive sum),
    /// the mass of a bin being spread evenly over it.
    pub fn quantile(&self, q: &[f32], p: f32) -> f32 {
        let q = self.checked(q);
        let mut wanted = f64::from(p) * q.iter().copied().map(f64::from).sum::<f64>();
        for (i, &q) in q.iter().enumerate() {
            let mass = f64::from(q);
            if mass > 0.0 && wanted <= mass {
                return self.position(i, wanted.max(0.0) / mass) as f32;
            }
            wanted -= mass;
        }
        // Rounding errors reach past the last bin with mass.
        let last = q.iter().rposition(|&q| q > 0.0).unwrap_or(self.count - 1);
        self.position(last, 1.0) as f32
    }

    /// Tokens at `fraction` (0..=1) of bin `i`.
    fn position(&self, i: usize, fraction: f64) -> f64 {
        match self.equal {
            Some(width) => width * (i as f64 + fraction),
            None => self.lower(i) + self.width(i) * fraction,
        }
    }

    fn checked<'a>(&self, q: &'a [f32]) -> &'a [f32] {
        assert_eq!(q.len(), self.count, "a distribution over {} bins", self.count);
        q
    }
}

/// Panics unless `count` bins over `max_tokens` tokens are possible.
fn check_sizes(count: usize, max_tokens: u32) {
    assert!((1..=MAX_BINS).contains(&count), "{count} bins, at most {MAX_BINS}");
    assert!((count as u32..=MAX_TOKENS).contains(&max_tokens), "{count} bins of {max_tokens}");
}

#[cfg(test)]
mod tests;
