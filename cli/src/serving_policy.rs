//! The policy that a model is served with.

use trail_probe::RankOptions;
use trail_runtime::engine::{DEFAULT_C, Needs, PolicyKind, with_rank_options};
use trail_scheduler::policies::Sjf;

use crate::args::EngineArgs;
use crate::error::Error;
use crate::notice::notice;
use crate::setup::Setup;

impl Setup {
    /// The policy that is named, or the model's, if it can serve.
    pub(crate) fn serving_policy(&self, args: &EngineArgs) -> Result<PolicyKind, Error> {
        let policy = args.policy.unwrap_or_else(|| self.default_policy());
        if policy.needs() == Needs::TrueLengths {
            return Err(Error::usage(format!(
                "policy {policy} needs the true length of every answer, which only the recorded runs \
                 of demo and bench serve know: choose another one, fcfs or trail for instance"
            )));
        }
        if policy.needs() == Needs::Nothing && self.predictions.names_predictor() {
            notice(format_args!(
                "warning: policy {} orders requests without predictions: --length-predictor \
                 changes only what is reserved and reported",
                policy.name()
            ));
        }
        args.warn_of_idle_options(policy);
        self.with_options(args, policy)
    }

    /// `policy` with the options of the rank: those of `args`, else those of the probe's file.
    pub fn with_options(&self, args: &EngineArgs, policy: PolicyKind) -> Result<PolicyKind, Error> {
        Ok(args.with_options(with_rank_options(policy, self.rank_options()?)))
    }

    /// The options of the rank that the probe's file names. The first prediction has a share only
    /// where a trained predictor makes it, as when the share was chosen.
    pub fn rank_options(&self) -> Result<RankOptions, Error> {
        let options = self.probe()?.map(|probe| probe.rank_options).unwrap_or_default();
        let initial_share = options.initial_share.filter(|_| self.predictions.are_trained());
        Ok(RankOptions { initial_share, ..options })
    }

    fn default_policy(&self) -> PolicyKind {
        if self.probe_file().is_some() {
            return PolicyKind::trail(DEFAULT_C);
        }
        if self.predictions.names_predictor() {
            notice(
                "warning: no probe beside the model: shortest predicted job first, by \
                 --length-predictor (give a probe with --probe FILE)",
            );
            return PolicyKind::Sjf(Sjf::default());
        }
        notice(
            "warning: no probe beside the model: first come, first served (give one with --probe FILE)",
        );
        PolicyKind::Fcfs
    }
}
