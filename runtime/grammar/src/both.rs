//! Two constraints at once.

use std::sync::Arc;

use trail_runtime::backend::TokenMask;
use trail_runtime::engine::{Constraint, ConstraintFault, Matcher};

/// Allows the tokens that both constraints allow. Where there is none, the answer fails.
pub struct Both(pub Arc<dyn Constraint>, pub Arc<dyn Constraint>);

impl Constraint for Both {
    fn matcher(&self, ends: &[u32]) -> Box<dyn Matcher> {
        Box::new(BothMatcher(self.0.matcher(ends), self.1.matcher(ends)))
    }
}

struct BothMatcher(Box<dyn Matcher>, Box<dyn Matcher>);

impl Matcher for BothMatcher {
    fn accept(&mut self, token: u32) -> Result<(), ConstraintFault> {
        self.0.accept(token)?;
        self.1.accept(token)
    }

    /// The mask decides: one may forbid the tokens that the other forces.
    fn force(&mut self, _: &mut Vec<u32>) -> Result<(), ConstraintFault> {
        Ok(())
    }

    fn mask(&mut self) -> Result<TokenMask, ConstraintFault> {
        let mut mask = self.0.mask()?;
        mask.intersect(&self.1.mask()?);
        match mask.is_empty() {
            true => Err(ConstraintFault::Refused(
                "the grammar and the rules on tokens leave no token: relax one".into(),
            )),
            false => Ok(mask),
        }
    }
}
