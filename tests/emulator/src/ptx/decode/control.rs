//! Decoding of branches, exits and barriers.

use super::{Lower, Result};
use crate::exec::cluster_barrier;
use crate::exec::ops::Opcode;
use crate::ptx::ast::Operand;
use crate::ptx::program::{Flow, Inst, NEVER, Reduce};
use crate::ptx::types::{Class, Ty};

impl Lower<'_> {
    pub(super) fn label(&self, operand: Option<&Operand>) -> Result<u32> {
        let Some(Operand::Symbol(name, _)) = operand else { return self.fail("expected a label") };
        match self.function.labels.get(name) {
            Some(&at) => Ok(at as u32),
            None => self.fail(format!("unknown label `{name}`")),
        }
    }

    pub(super) fn control(&mut self, opcode: &mut Opcode, operands: &[Operand]) -> Result<bool> {
        let line = self.line;
        match opcode.name.as_str() {
            "bra" => {
                opcode.take("uni");
                let target = self.label(operands.first())?;
                self.push(Inst::new(Flow::Branch { target, join: NEVER }, line));
            }
            "brx" => {
                opcode.take("uni");
                if !opcode.take("idx") || operands.len() != 2 {
                    return self.fail("unsupported form");
                }
                let index = self.source(&operands[0], Ty::U32)?;
                let Operand::Symbol(name, _) = &operands[1] else {
                    return self.fail("expected a table");
                };
                let Some(targets) = self.function.tables.get(name) else {
                    return self.fail(format!("unknown table `{name}`"));
                };
                let targets = targets
                    .iter()
                    .map(|target| self.label(Some(&Operand::Symbol(target.clone(), 0))));
                let targets = targets.collect::<Result<Vec<u32>>>()?;
                let mut inst =
                    Inst::new(Flow::Indexed { table: self.tables.len() as u32, join: NEVER }, line);
                self.tables.push(targets);
                inst.push_source(index);
                self.push(inst);
            }
            "ret" | "exit" => {
                opcode.take("uni");
                self.push(Inst::new(Flow::Exit, line));
            }
            "trap" | "brkpt" => self.push(Inst::new(Flow::Trap, line)),
            "nanosleep" => self.push(Inst::new(Flow::Yield, line)),
            "bar" | "barrier" => return self.barrier(opcode, operands).map(|()| true),
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(super) fn barrier(&mut self, opcode: &mut Opcode, operands: &[Operand]) -> Result<()> {
        if opcode.take("warp") {
            opcode.take("sync");
            let [members] = operands else { return self.fail("expected the members") };
            let members = self.source(members, Ty::B32)?;
            let mut inst = Inst::new(Flow::Checked(crate::exec::sync::warp_sync), self.line);
            inst.push_source(members);
            self.push(inst);
            return Ok(());
        }
        if opcode.take("cluster") {
            return self.cluster_barrier(opcode);
        }
        opcode.take("cta");
        // `bar` is `barrier.cta` with `.aligned` implied.
        let aligned = opcode.take("aligned") || opcode.name == "bar";
        let waits = match opcode.take_any(&["sync", "arrive", "red"]) {
            Some("red") => return self.reduction(opcode, operands, aligned),
            Some(kind) => kind == "sync",
            None => return self.fail("unsupported form"),
        };
        let counted = operands.len() > 1;
        let mut inst =
            Inst::new(Flow::Barrier { waits, counted, aligned, reduce: None }, self.line);
        for operand in operands {
            let slot = self.source(operand, Ty::U32)?;
            inst.push_source(slot);
        }
        self.push(inst);
        Ok(())
    }

    /// `barrier.cluster.arrive{.release, .relaxed}{.aligned}`, `barrier.cluster.wait{.acquire}`
    fn cluster_barrier(&mut self, opcode: &mut Opcode) -> Result<()> {
        opcode.take("aligned");
        let mut inst = Inst::new(Flow::Wait(cluster_barrier::wait), self.line);
        match opcode.take_any(&["arrive", "wait"]) {
            Some("arrive") => {
                inst.flow = Flow::Checked(cluster_barrier::arrive);
                inst.imm = i64::from(opcode.take_any(&["release", "relaxed"]) != Some("relaxed"));
            }
            Some(_) => _ = opcode.take("acquire"),
            None => return self.fail("unsupported form"),
        }
        self.push(inst);
        Ok(())
    }

    /// `bar.red.popc.u32 d, a{, b}, {!}c`
    pub(super) fn reduction(
        &mut self,
        opcode: &mut Opcode,
        operands: &[Operand],
        aligned: bool,
    ) -> Result<()> {
        let reduce = match opcode.take_any(&["popc", "and", "or"]) {
            Some("popc") => Reduce::Popc,
            Some("and") => Reduce::And,
            Some(_) => Reduce::Or,
            None => return self.fail("unsupported reduction"),
        };
        let counted = operands.len() > 3;
        let Some(target) = operands.first() else { return self.fail("no operands") };
        let target =
            self.target(target, if reduce == Reduce::Popc { Class::Narrow } else { Class::Pred })?;
        let mut sources = Vec::new();
        for (at, operand) in operands.iter().enumerate().skip(1) {
            let ty = if at + 1 == operands.len() { Ty::Pred } else { Ty::U32 };
            sources.push(self.source(operand, ty)?);
        }
        let mut inst = Inst::new(
            Flow::Barrier { waits: true, counted, aligned, reduce: Some(reduce) },
            self.line,
        );
        inst.push_target(target);
        sources.into_iter().for_each(|slot| inst.push_source(slot));
        self.push(inst);
        Ok(())
    }
}
