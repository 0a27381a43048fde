//! The routes of a step: which experts compute which rows, as values for the regions of an MLP.

use crate::model::{MixtureConfig, ModelConfig};

/// Rows of one gated MLP: consecutive rows of its input, and of its inner activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Index of the MLP among those of the layer.
    pub(crate) mlp: usize,
    /// First row of the normalised stream, in which copies follow the rows of the batch.
    pub(crate) input: usize,
    /// First row of the inner activations, and first of `Routes::assignments`.
    pub(crate) first: usize,
    pub(crate) rows: usize,
}

/// A row that an expert computes, and its weight in the sum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Assignment {
    pub(crate) row: usize,
    pub(crate) weight: f32,
}

/// An expert that computes a row; its score before the weight is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Choice {
    pub(crate) expert: usize,
    pub(crate) weight: f32,
}

/// The routes of a step in the current layer. Each of a row's experts adds to the sum in the order
/// of their indices, whatever other rows they compute: a row's bits depend on the row alone.
#[derive(Default)]
pub(crate) struct Routes {
    /// Scores of the router `[rows][router rows]`.
    pub(crate) scores: Vec<f32>,
    /// The experts of each row, best first `[rows][experts_per_token]`.
    pub(crate) choices: Vec<Choice>,
    /// Rows by expert, then in order `[rows * experts_per_token]`.
    pub(crate) assignments: Vec<Assignment>,
    /// The MLPs that compute rows, in order.
    pub(crate) groups: Vec<Group>,
    /// Rows that are copied so that the rows of each expert are consecutive, in the order of the
    /// copies.
    pub(crate) copies: Vec<usize>,
    /// True for each expert that computed a row in the last pass `[num_layers][num_experts]`.
    used: Vec<bool>,
    /// Slots before those of each expert `[num_experts + 1]`.
    ends: Vec<usize>,
}

impl Routes {
    /// Routes of up to `max_rows` rows.
    pub(crate) fn new(config: &ModelConfig, max_rows: usize) -> Self {
        let Some(mixture) = &config.mixture else {
            return Routes { groups: Vec::with_capacity(1), ..Routes::default() };
        };
        // The shared expert has an assignment for each row.
        let assignments = max_rows * mixture.experts_per_token;
        Routes {
            scores: vec![0.0; max_rows * mixture.router_rows()],
            choices: vec![Choice::default(); assignments],
            assignments: Vec::with_capacity(assignments),
            groups: Vec::with_capacity(mixture.num_experts),
            copies: Vec::with_capacity(assignments),
            used: vec![false; config.num_layers * mixture.num_experts],
            ends: vec![0; mixture.num_experts + 1],
        }
    }

    /// Begins a pass.
    pub(crate) fn begin(&mut self) {
        self.used.fill(false);
    }

    /// Routes all `rows` rows to MLP 0.
    pub(crate) fn all(&mut self, rows: usize) {
        self.groups.clear();
        self.groups.push(Group { mlp: 0, input: 0, first: 0, rows });
    }

    /// Routes all `rows` rows to the shared expert, by its scores.
    pub(crate) fn shared(&mut self, mixture: &MixtureConfig, rows: usize) {
        self.all(rows);
        self.assignments.clear();
        let scores = self.scores.chunks_exact(mixture.router_rows()).take(rows);
        self.assignments.extend(scores.enumerate().map(|(row, scores)| {
            let weight = 1.0 / (1.0 + (-scores[mixture.num_experts]).exp());
            Assignment { row, weight }
        }));
    }

    /// Routes `rows` rows of layer `layer` by their choices.
    pub(crate) fn group(&mut self, mixture: &MixtureConfig, layer: usize, rows: usize) {
        let per_row = mixture.experts_per_token;
        let choices = &self.choices[..rows * per_row];
        // A counting sort: `ends` counts, then has the place of each expert's next assignment.
        self.ends.fill(0);
        choices.iter().for_each(|choice| self.ends[choice.expert + 1] += 1);
        for expert in 0..mixture.num_experts {
            self.ends[expert + 1] += self.ends[expert];
        }
        self.assignments.clear();
        self.assignments.resize(choices.len(), Assignment::default());
        for (index, choice) in choices.iter().enumerate() {
            let place = &mut self.ends[choice.expert];
            self.assignments[*place] = Assignment { row: index / per_row, weight: choice.weight };
            *place += 1;
        }
        self.groups.clear();
        self.copies.clear();
        let mut first = 0;
        for (mlp, &end) in self.ends[..mixture.num_experts].iter().enumerate() {
            let assignments = &self.assignments[first..end];
            if let (Some(begin), Some(last)) = (assignments.first(), assignments.last()) {
                let is_consecutive = last.row - begin.row + 1 == assignments.len();
                let input = if is_consecutive { begin.row } else { rows + self.copies.len() };
                if !is_consecutive {
                    self.copies.extend(assignments.iter().map(|assignment| assignment.row));
                }
                self.groups.push(Group { mlp, input, first, rows: assignments.len() });
                self.used[layer * mixture.num_experts + mlp] = true;
            }
            first = end;
        }
    }

    /// True if gated MLP `mlp` of `layer` computed a row in the last pass.
    pub(crate) fn is_used(&self, config: &ModelConfig, layer: usize, mlp: usize) -> bool {
        let is_expert = |mixture: &&MixtureConfig| mlp < mixture.num_experts;
        match config.layer_mixture(layer).filter(is_expert) {
            Some(mixture) => self.used[layer * mixture.num_experts + mlp],
            None => true,
        }
    }

    /// Rows of inner activations.
    pub(crate) fn inner_rows(&self) -> usize {
        self.groups.last().map_or(0, |group| group.first + group.rows)
    }

    /// Most rows of a group.
    pub(crate) fn max_group_rows(&self) -> usize {
        self.groups.iter().map(|group| group.rows).max().unwrap_or(0)
    }
}

/// Chooses the experts of a row by the router's `scores`, best first: of equal scores the one with
/// the lowest index. The weights are the softmax of the chosen scores, or of all.
pub(crate) fn choose(mixture: &MixtureConfig, scores: &[f32], chosen: &mut [Choice]) {
    let scores = &scores[..mixture.num_experts];
    let mut len = 0;
    for (expert, &score) in scores.iter().enumerate() {
        let weight = score + 0.0; // A negative zero equals a positive one.
        let is_better = |other: &Choice| weight.total_cmp(&other.weight).is_gt();
        let place = chosen[..len].iter().position(is_better).unwrap_or(len);
        if place < chosen.len() {
            len = chosen.len().min(len + 1);
            chosen[place..len].rotate_right(1);
            chosen[place] = Choice { expert, weight };
        }
    }
    let max = chosen[0].weight;
    let sum: f32 = match mixture.normalized {
        true => chosen.iter().map(|choice| (choice.weight - max).exp()).sum(),
        false => scores.iter().map(|score| (score - max).exp()).sum(),
    };
    chosen.iter_mut().for_each(|choice| choice.weight = (choice.weight - max).exp() / sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixture(num_experts: usize, experts_per_token: usize, normalized: bool) -> MixtureConfig {
        let (expert_size, shared_size, dense_layers) = (8, None, Vec::new());
        MixtureConfig {
            num_experts,
            experts_per_token,
            expert_size,
            shared_size,
            normalized,
            dense_layers,
        }
    }

    fn chosen(mixture: &MixtureConfig, scores: &[f32]) -> Vec<(usize, f32)> {
        let mut chosen = vec![Choice::default(); mixture.experts_per_token];
        choose(mixture, scores, &mut chosen);
        chosen.iter().map(|choice| (choice.expert, choice.weight)).collect()
    }

    #[test]
    fn of_equal_scores_the_lowest_indices_are_chosen() {
        let half = mixture(5, 2, true);
        assert_eq!(chosen(&half, &[1.0; 5]), [(0, 0.5), (1, 0.5)]);
        assert_eq!(chosen(&half, &[0.0, 1.0, 2.0, 2.0, 2.0]), [(2, 0.5), (3, 0.5)]);
        assert_eq!(chosen(&half, &[-0.0, 0.0, -1.0, 0.0, -0.0]), [(0, 0.5), (1, 0.5)]);
        let experts = |scores: &[f32]| chosen(&half, scores).into_iter().map(|pair| pair.0);
        assert!(experts(&[0.0, 3.0, 1.0, 3.0, 9.0]).eq([4, 1]));
        // Scores that are not numbers are an error of the model, and still choose experts.
        assert!(experts(&[f32::NAN; 5]).eq([0, 1]));
    }

    #[test]
    fn weights_are_the_softmax_of_the_chosen_or_of_all() {
        let scores = [0.0, 4.0_f32.ln(), 3.0_f32.ln(), 0.0];
        let close = |found: Vec<(usize, f32)>, wanted: [(usize, f32); 2]| {
            assert!(
                found.iter().zip(wanted).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-6),
                "{found:?}"
            );
        };
        close(chosen(&mixture(4, 2, true), &scores), [(1, 4.0 / 7.0), (2, 3.0 / 7.0)]);
        close(chosen(&mixture(4, 2, false), &scores), [(1, 4.0 / 9.0), (2, 3.0 / 9.0)]);
    }

    #[test]
    fn rows_are_grouped_by_expert_and_copied_where_they_are_apart() {
        let config = ModelConfig {
            mixture: Some(mixture(4, 2, true)),
            ..ModelConfig::named("tiny").unwrap()
        };
        let mut routes = Routes::new(&config, 3);
        let experts = [[0, 3], [3, 2], [0, 3]];
        for (choice, (index, expert)) in
            routes.choices.iter_mut().zip(experts.as_flattened().iter().enumerate())
        {
            *choice = Choice { expert: *expert, weight: index as f32 };
        }
        routes.group(config.mixture.as_ref().unwrap(), 1, 3);
        let assignments: Vec<(usize, f32)> =
            routes.assignments.iter().map(|s| (s.row, s.weight)).collect();
        assert_eq!(assignments, [(0, 0.0), (2, 4.0), (1, 3.0), (0, 1.0), (1, 2.0), (2, 5.0)]);
        let group = |mlp, input, first, rows| Group { mlp, input, first, rows };
        assert_eq!(routes.groups, [group(0, 3, 0, 2), group(2, 1, 2, 1), group(3, 0, 3, 3)]);
        assert_eq!((&routes.copies[..], routes.max_group_rows()), (&[0, 2][..], 3));
        let used = [[false; 4], [true, false, true, true]];
        assert_eq!(routes.used, used.as_flattened());
    }
}
