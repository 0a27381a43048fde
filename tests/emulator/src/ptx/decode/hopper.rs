//! Decoding of Hopper's own: mbarriers, bulk copies, products of a warpgroup.

use super::{Flow, Inst, Lower, Operand, Result, Ty};
use crate::exec::ops::Opcode;
use crate::exec::{bulk, mbarrier, shared, wgmma};
use crate::ptx::program::{Handler, Slot, Space};
use crate::ptx::types::Class;

/// Names of this block's shared memory; then that of any block of the cluster.
const SHARED: [&str; 3] = ["shared", "shared::cta", "shared::cluster"];

impl Lower<'_> {
    pub(super) fn hopper(&mut self, opcode: &mut Opcode, operands: &[Operand]) -> Result<bool> {
        let has = |modifier: &str| opcode.modifiers.iter().any(|m| m == modifier);
        match opcode.name.as_str() {
            "mapa" => self.map_address(opcode, operands)?,
            "mbarrier" => self.mbarrier(opcode, operands)?,
            "cp" if has("bulk") => self.bulk_copy(opcode, operands)?,
            "fence" if has("mbarrier_init") => {
                opcode.modifiers.clear();
                self.push(Inst::new(Flow::Plain(mbarrier::init_fence), self.line));
            }
            "fence" if has("proxy") && has("async") => {
                opcode.modifiers.clear();
                self.push(Inst::new(Flow::Plain(mbarrier::proxy_fence), self.line));
            }
            "wgmma" => self.warpgroup(opcode, operands)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// `mapa.shared::cluster.u32 d, a, rank`
    fn map_address(&mut self, opcode: &mut Opcode, operands: &[Operand]) -> Result<()> {
        let ([to, at, rank], true, Some(Ty::U32)) =
            (operands, opcode.take("shared::cluster"), opcode.ty(0))
        else {
            return self.fail("unsupported form");
        };
        let mut inst = Inst::new(Flow::Plain(shared::map_address), self.line);
        for source in [at, rank] {
            let slot = self.source(source, Ty::U32)?;
            inst.push_source(slot);
        }
        let slot = self.target(to, Class::Narrow)?;
        inst.push_target(slot);
        self.push(inst);
        Ok(())
    }

    /// `mbarrier.init`, `.arrive`, `.arrive.expect_tx`, `.try_wait.parity`, `.test_wait.parity`
    fn mbarrier(&mut self, opcode: &mut Opcode, operands: &[Operand]) -> Result<()> {
        self.has_mbarriers = true;
        let space = match opcode.take_any(&SHARED) {
            None => return self.fail("only addresses of shared memory"),
            Some("shared::cluster") => Space::Cluster,
            Some(_) => Space::Shared,
        };
        opcode.take_any(&["release", "acquire"]);
        opcode.take_any(&["cta", "cluster"]);
        if opcode.ty(0) != Some(Ty::B64) {
            return self.fail("unsupported type");
        }
        self.grain(Space::Shared, 8);
        match (opcode.take_any(&["init", "arrive", "try_wait", "test_wait"]), operands) {
            (Some("init"), [at, count]) if space == Space::Shared => {
                self.on_barrier(Flow::Checked(mbarrier::init), at, Some(count))
            }
            (Some("arrive"), [Operand::Sink, at]) => {
                self.on_barrier(Flow::Checked(mbarrier::arrive), at, None)?;
                self.in_space(space)
            }
            (Some("arrive"), [Operand::Sink, at, bytes]) if opcode.take("expect_tx") => {
                self.on_barrier(Flow::Checked(mbarrier::arrive), at, Some(bytes))?;
                self.in_space(space)
            }
            // A fourth operand limits the time that the hardware may wait.
            (Some("try_wait" | "test_wait"), [to, at, parity] | [to, at, parity, _])
                if space == Space::Shared && opcode.take("parity") =>
            {
                self.on_barrier(Flow::Poll(mbarrier::try_wait), at, Some(parity))?;
                let to = self.target(to, Class::Pred)?;
                if let Some(inst) = self.code.last_mut() {
                    inst.push_target(to);
                }
                Ok(())
            }
            _ => self.fail("unsupported form"),
        }
    }

    /// The instruction just pushed has addresses of `space`.
    fn in_space(&mut self, space: Space) -> Result<()> {
        if let Some(inst) = self.code.last_mut() {
            inst.access.space = space;
        }
        Ok(())
    }

    fn on_barrier(&mut self, flow: Flow, at: &Operand, value: Option<&Operand>) -> Result<()> {
        let (base, offset, _) = self.memory(at)?;
        let mut inst = Inst::new(flow, self.line);
        inst.imm = offset;
        inst.push_source(base);
        if let Some(value) = value {
            let value = self.source(value, Ty::U32)?;
            inst.push_source(value);
        }
        self.push(inst);
        Ok(())
    }

    /// `cp.async.bulk`, of contiguous bytes or of a box of a matrix.
    fn bulk_copy(&mut self, opcode: &mut Opcode, operands: &[Operand]) -> Result<()> {
        let is_inward = opcode.take("async")
            && opcode.take("bulk")
            && opcode.take_any(&SHARED).is_some()
            && opcode.take("global")
            && opcode.take("mbarrier::complete_tx::bytes");
        let is_tensor = opcode.take("tensor");
        let hints = usize::from(opcode.take("L2::cache_hint"));
        let operands = &operands[..operands.len().saturating_sub(hints)];
        let (operands, blocks) = match operands.split_last() {
            Some((blocks, operands)) if opcode.take("multicast::cluster") => {
                (operands, Some(self.source(blocks, Ty::U16)?))
            }
            _ => (operands, None),
        };
        self.grain(Space::Shared, 16);
        let (run, sources): (Handler, Vec<Slot>) = match operands {
            [to, Operand::Tensor(map, at), barrier] if is_inward && is_tensor => {
                let [x, y] = at.as_slice() else { return self.fail("two coordinates only") };
                opcode.take("tile");
                if !opcode.take("2d") {
                    return self.fail("two dimensions only");
                }
                let [to, map, barrier] =
                    [self.folded(to)?, self.folded(map)?, self.folded(barrier)?];
                let [x, y] = [self.source(x, Ty::S32)?, self.source(y, Ty::S32)?];
                (bulk::copy_box, vec![to, map, x, y, barrier])
            }
            [to, from, bytes, barrier] if is_inward && !is_tensor => {
                let [to, from, barrier] =
                    [self.folded(to)?, self.folded(from)?, self.folded(barrier)?];
                (bulk::copy, vec![to, from, self.source(bytes, Ty::U32)?, barrier])
            }
            _ => return self.fail("unsupported form"),
        };
        let mut inst = Inst::new(Flow::Checked(run), self.line);
        inst.imm = i64::from(blocks.is_some());
        sources.into_iter().chain(blocks).for_each(|slot| inst.push_source(slot));
        self.push(inst);
        Ok(())
    }

    /// `wgmma.fence`, `.commit_group`, `.wait_group`, `.mma_async`
    fn warpgroup(&mut self, opcode: &mut Opcode, operands: &[Operand]) -> Result<()> {
        if !(opcode.take("sync") && opcode.take("aligned")) {
            return self.fail("unsupported form");
        }
        let mut inst = Inst::new(Flow::Checked(wgmma::fence), self.line);
        match opcode.take_any(&["fence", "commit_group", "wait_group", "mma_async"]) {
            Some("fence") => {}
            Some("commit_group") => inst.flow = Flow::Checked(wgmma::commit),
            Some("wait_group") => {
                let [Operand::Int(groups)] = operands else {
                    return self.fail("expected a number of groups");
                };
                inst.flow = Flow::Checked(wgmma::wait);
                self.product_waits.push(self.code.len());
                inst.imm = *groups as i64;
            }
            Some(_) => return self.warpgroup_product(opcode, operands),
            None => return self.fail("unsupported form"),
        }
        self.push(inst);
        Ok(())
    }

    /// `wgmma.mma_async.sync.aligned.m64nNk16.f32.T.T d, a, b, p, 1, 1{, 0}, transposed`, and
    /// `.f16.f16.f16`, with two accumulators a register
    fn warpgroup_product(&mut self, opcode: &mut Opcode, operands: &[Operand]) -> Result<()> {
        let [Operand::Vector(d), a, b, added, factors @ ..] = operands else {
            return self.fail("unsupported form");
        };
        let selected = match opcode.types.as_slice() {
            &[sums, a, b] if a == b => wgmma::select(a, sums),
            _ => None,
        };
        let Some((run, packed)) = selected else { return self.fail("unsupported types") };
        let columns = d.len() * 2 * packed;
        let shape = format!("m64n{columns}k{}", wgmma::K);
        let is_shape = (8..=256).contains(&columns) && columns % 8 == 0;
        if !(is_shape && opcode.take(&shape)) {
            return self.fail("unsupported shape, or another number of accumulators");
        }
        // Factors of the operands, and whether those in shared memory are transposed.
        let factors: Vec<_> = factors
            .iter()
            .map(|factor| match factor {
                Operand::Int(value) => Some(*value),
                _ => None,
            })
            .collect();
        let transposed = match (a, factors.as_slice()) {
            (Operand::Vector(_), &[Some(1), Some(1), Some(b @ 0..=1)]) => b,
            (Operand::Vector(_), _) => return self.fail("only factors of 1"),
            (_, &[Some(1), Some(1), Some(0), Some(b @ 0..=1)]) => b,
            _ => return self.fail("only factors of 1, and a first operand that is not transposed"),
        };
        let mut inst = Inst::new(Flow::Checked(run), self.line);
        inst.imm = transposed as i64;
        match a {
            Operand::Vector(registers) if registers.len() == 4 => {
                for register in registers {
                    let slot = self.source(register, Ty::B32)?;
                    inst.push_source(slot);
                    self.product_registers.insert(slot);
                }
            }
            descriptor => {
                let slot = self.source(descriptor, Ty::U64)?;
                inst.push_source(slot);
            }
        }
        for slot in [self.source(b, Ty::U64)?, self.source(added, Ty::Pred)?] {
            inst.push_source(slot);
        }
        let accumulators = d.iter().map(|register| self.target(register, Class::Narrow));
        inst.accumulators = accumulators.collect::<Result<_>>()?;
        self.product_registers.extend(&inst.accumulators);
        self.push(inst);
        Ok(())
    }

    /// Keeps the places of all registers of products over the waits, which write accumulators and
    /// find first operands that changed.
    pub(super) fn keep_product_registers(&mut self) {
        let mut all: Vec<Slot> = self.product_registers.iter().copied().collect();
        all.sort_unstable_by_key(|slot| slot.0);
        for &at in &self.product_waits {
            self.code[at].accumulators = all.clone().into();
        }
    }
}
