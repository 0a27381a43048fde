//! Latency by the quality of the predictions.

use trail_runtime::engine::PolicyKind;
use trail_scheduler::policies::Trail;
use trail_simulator::{Dataset, Noise};

use super::super::curves::{TOKEN_LATENCY, against_x, at, distributions};
use super::super::{Experiment, Finding, Trial, labelled, ratios};
use super::{LARGE, LMSYS, RANKING, SHAREGPT, SMALL, policy, rank, scenario, trial};
use crate::commands::simulate::scenario::Pace;
use crate::plot::{Curve, Panel};

/// Requests of a burst.
const BURST: usize = 2000;

/// Rank correlations of Figure 2b.
const TAUS: [f64; 6] = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];

fn burst(label: &str, model: &str, data: (Dataset, Noise), policy: PolicyKind, x: f64) -> Trial {
    trial(label, x, scenario(model, data, policy, Pace::Burst, BURST))
}

/// Figure 2b: latency by rank correlation.
pub const FIG2B: Experiment = Experiment {
    name: "ltr-fig2b",
    source: "Learning to Rank, figure 2b: Kendall's tau and latency",
    claim: "the higher tau, the lower the latency (no values)",
    conditions: "bursts of 2,000 requests of ShareGPT's assumed lengths, Llama-3-8B on an A100-80GB \
                 (roofline), 256 sequences, 768 tokens a step; predictions are the lengths, \
                 with a share shuffled until tau-b is met, as in the paper's code",
    grid: || {
        let of = |tau| burst("ranking", SMALL, (SHAREGPT.dataset, rank(tau)), policy(RANKING), tau);
        TAUS.map(of).into()
    },
    read: |measured| {
        let of = |tau| at(measured, "ranking", tau);
        let absolute = TAUS.map(|tau| {
            let ours = of(tau).each(TOKEN_LATENCY);
            Finding::new(format!("tau {tau}: mean, s/token"), "not printed", ours)
        });
        let steps = TAUS.windows(2).map(|pair| {
            let ours = ratios(of(pair[0]), of(pair[1]), TOKEN_LATENCY);
            Finding::new(format!("tau {} / tau {}", pair[0], pair[1]), "above 1", ours)
        });
        absolute.into_iter().chain(steps).collect()
    },
    panels: |measured| {
        let curves = against_x(measured, "", TOKEN_LATENCY);
        vec![Panel::lines(["Kendall's tau", "mean latency per token, s"], curves)]
    },
};

/// Table 3: method, tau and seconds per token, on ShareGPT and on LMSYS-Chat-1M.
type Printed = (&'static str, f64, &'static str);
const SHAREGPT_ROWS: [Printed; 7] = [
    ("optimal", 0.74, "0.46"),
    ("ranking", 0.54, "0.78"),
    ("PO's tau", 0.51, "1.04 (with PO's own cost)"),
    ("buckets of 100", 0.49, "0.84"),
    ("buckets of 10", 0.46, "0.86"),
    ("buckets of 1", 0.32, "1.00"),
    ("10 buckets", 0.24, "1.26"),
];
const LMSYS_ROWS: [Printed; 7] = [
    ("optimal", 0.84, "0.34"),
    ("ranking", 0.62, "0.54"),
    ("PO's tau", 0.67, "0.95 (with PO's own cost)"),
    ("buckets of 100", 0.58, "0.77"),
    ("buckets of 10", 0.57, "0.61"),
    ("buckets of 1", 0.50, "0.68"),
    ("10 buckets", 0.17, "2.23"),
];

/// Table 3, the columns of latency.
pub const TABLE3: Experiment = Experiment {
    name: "ltr-table3",
    source: "Learning to Rank, table 3: latency by the predictor's tau, Llama-3-70B",
    claim: "a higher tau goes with a lower latency",
    conditions: "bursts of 2,000 requests, Llama-3-70B on eight A100-80GB (roofline), 256 \
                 sequences, 768 tokens a step; assumed log-normal lengths; every method is a \
                 ranking of its printed tau by shuffled lengths, so ties of classes and PO's first \
                 tokens are left out; the time to 1,000 answers is ltr-table2's",
    grid: || {
        let mut grid = Vec::new();
        for (set, rows) in [(SHAREGPT, SHAREGPT_ROWS), (LMSYS, LMSYS_ROWS)] {
            for (name, tau, _) in rows {
                let label = format!("{} {name}", set.dataset.name);
                let data = (set.dataset, rank(tau));
                grid.push(burst(&label, LARGE, data, policy(RANKING), tau));
            }
        }
        grid
    },
    read: |measured| {
        let mut findings = Vec::new();
        for (set, rows) in [("sharegpt", SHAREGPT_ROWS), ("lmsys", LMSYS_ROWS)] {
            for (name, tau, printed) in rows {
                let ours = labelled(measured, &format!("{set} {name}")).each(TOKEN_LATENCY);
                let quantity = format!("{set} {name}, tau {tau}: s/token");
                findings.push(Finding::new(quantity, printed, ours));
            }
        }
        findings
    },
    panels: |measured| {
        let curve = |name: &str, rows: &[Printed]| {
            let of = |(method, tau, _): &Printed| {
                let ours = labelled(measured, &format!("{name} {method}")).each(TOKEN_LATENCY);
                (*tau, ours.iter().sum::<f64>() / ours.len().max(1) as f64)
            };
            let mut points: Vec<(f64, f64)> = rows.iter().map(of).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Curve { name: name.into(), points }
        };
        let curves = vec![curve("sharegpt", &SHAREGPT_ROWS), curve("lmsys", &LMSYS_ROWS)];
        vec![Panel::lines(["Kendall's tau", "mean latency per token, s"], curves)]
    },
};

/// Table 7: Alpaca.
pub const TABLE7: Experiment = Experiment {
    name: "ltr-table7",
    source: "Learning to Rank, table 7: a burst of 2,000 Alpaca requests",
    claim: "the ranking (tau 0.73) is near the oracle (tau 0.72, another sampling): 0.28, 0.24, and \
            FCFS 1.36 s/token",
    conditions: "2,000 requests of Alpaca's lengths under a cap of 512 (the paper has none), \
                 Llama-3-8B on an A100-80GB (roofline), 256 sequences, 768 tokens a step; both \
                 predictors are shuffled lengths of the printed tau, so they differ by 0.01 in tau \
                 alone",
    grid: || {
        let of =
            |name, tau, text| burst(name, SMALL, (Dataset::ALPACA, rank(tau)), policy(text), 0.0);
        vec![
            of("fcfs", 0.73, "fcfs"),
            of("ranking", 0.73, RANKING),
            of("oracle's tau", 0.72, RANKING),
            of("exact", 1.0, RANKING),
        ]
    },
    read: |measured| {
        let of = |label| labelled(measured, label);
        let gain = |label| ratios(of("fcfs"), of(label), TOKEN_LATENCY);
        vec![
            Finding::new("fcfs, s/token", "1.36", of("fcfs").each(TOKEN_LATENCY)),
            Finding::new("ranking, s/token", "0.28", of("ranking").each(TOKEN_LATENCY)),
            Finding::new("oracle's tau, s/token", "0.24", of("oracle's tau").each(TOKEN_LATENCY)),
            Finding::new("fcfs / ranking", "4.86", gain("ranking")),
            Finding::new("fcfs / oracle's tau", "5.67", gain("oracle's tau")),
            Finding::new("fcfs / exact", "not in the paper", gain("exact")),
        ]
    },
    panels: |measured| {
        vec![Panel::cumulative(
            ["latency per token, s", "requests answered, %"],
            distributions(measured, |outcome| outcome.token_latency_s()),
        )]
    },
};

/// Policies of Table 9: once from the prompt, by window, by token.
const PREDICTED: [&str; 3] = ["once", "every 50 tokens", "every token"];

/// Table 9: predictions corrected during the answer.
pub const TABLE9: Experiment = Experiment {
    name: "ltr-table9",
    source: "Learning to Rank, table 9: predictions repeated during the answer",
    claim: "no gain: 0.43 and 0.44 s/token (ShareGPT), 0.64 and 0.64 (LMSYS)",
    conditions: "bursts of 2,000 requests, assumed log-normal lengths, Llama-3-8B on an A100-80GB \
                 (roofline), 256 sequences, 768 tokens a step; predictions are the bundled probe's \
                 recorded ones, resampled by length: from the prompt once (ltr), or the remaining \
                 tokens every 50 (isrtf) or every token (trail with c = 1, no options). The paper's \
                 re-prediction is that of the ranking model, whose quality is not printed",
    grid: || {
        let policies = [policy(RANKING), policy("isrtf:50"), PolicyKind::Trail(Trail::paper(1.0))];
        let mut grid = Vec::new();
        for set in [SHAREGPT, LMSYS] {
            for (name, policy) in PREDICTED.iter().zip(policies) {
                let label = format!("{} {name}", set.dataset.name);
                grid.push(burst(&label, SMALL, (set.dataset, Noise::Demo), policy, 0.0));
            }
        }
        grid
    },
    read: |measured| {
        let mut findings = Vec::new();
        for (set, ratio, printed) in
            [("sharegpt", "1.02", ["0.43", "0.44"]), ("lmsys", "1.00", ["0.64", "0.64"])]
        {
            let of = |name: &str| labelled(measured, &format!("{set} {name}"));
            for (name, paper) in PREDICTED.iter().zip([printed[0], printed[1], printed[1]]) {
                let ours = of(name).each(TOKEN_LATENCY);
                findings.push(Finding::new(format!("{set}, {name}: s/token"), paper, ours));
            }
            for name in &PREDICTED[1..] {
                let ours = ratios(of(name), of("once"), TOKEN_LATENCY);
                findings.push(Finding::new(format!("{set}: {name} / once"), ratio, ours));
            }
        }
        findings
    },
    panels: |measured| {
        vec![Panel::cumulative(
            ["latency per token, s", "requests answered, %"],
            distributions(measured, |outcome| outcome.token_latency_s()),
        )]
    },
};
