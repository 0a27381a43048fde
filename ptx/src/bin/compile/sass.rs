//! The report of a kernel's machine code (SASS) from `nvdisasm`: the sister of ptxas' report of
//! registers and spills. ptxas schedules as it likes: loads are in flight as long as the source
//! says only if the scoreboards of the machine code say so too.
//!
//! An instruction has 128 bits; 21 bits control the issue: stall cycles, the scoreboard that the
//! result will release, and a mask of scoreboards to wait for until no instruction holds them
//! (Jia et al., Dissecting the NVIDIA Volta GPU Architecture, section 2.1).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use crate::manifest::Sass;

/// An instruction.
#[derive(Clone, Debug, Default, PartialEq)]
struct Instruction {
    /// Address in the kernel, bytes.
    address: u32,
    /// Name with its modifiers, such as `LDG.E.128.CONSTANT`.
    name: String,
    /// Address that it branches to.
    target: Option<u32>,
    /// Scoreboard that is held until the result is there; 7 for none.
    writes: u32,
    /// Scoreboards that must be released before it issues, a bit each.
    waits: u32,
    /// Register that its result begins with.
    result: Option<u32>,
    /// Register that the sums begin with to which a product adds; `None`: zeros.
    addend: Option<u32>,
    /// Groups of copies that it leaves pending, if it waits for copies (`cp.async.wait_group`).
    pending: Option<u32>,
}

impl Instruction {
    fn is(&self, name: &str) -> bool {
        self.name.split('.').next() == Some(name)
    }

    fn is_product(&self) -> bool {
        self.is("HMMA") || self.is("HGMMA")
    }

    /// Registers of its result, with `sums` of a product.
    fn results(&self, sums: u32) -> u32 {
        match () {
            () if self.is_product() => sums,
            () if self.name.contains(".128") || self.name.ends_with(".4") => 4,
            () if self.name.contains(".64") || self.name.ends_with(".2") || self.is("CS2R") => 2,
            () => 1,
        }
    }

    fn is_global_load(&self) -> bool {
        self.is("LDG") || self.is("LDGSTS") || self.is("UTMALDG")
    }

    /// A fence of a block (`.CTA`) costs next to nothing.
    fn is_device_fence(&self) -> bool {
        self.is("MEMBAR") && !self.name.ends_with(".CTA")
    }

    /// Weights are the only operand that kernels load by `ld.global.nc` with 16 bytes.
    fn is_weight_load(&self) -> bool {
        self.is("LDG") && self.name.contains(".128") && self.name.contains(".CONSTANT")
    }
}

/// Bytes of an instruction.
const INSTRUCTION_BYTES: u32 = 16;

/// Disassembles `cubin`. Returns the report of each kernel.
pub(crate) fn report(nvdisasm: &Path, cubin: &Path) -> Result<BTreeMap<String, Sass>, String> {
    let output = Command::new(nvdisasm)
        .args(["-c", "-hex"])
        .arg(cubin)
        .output()
        .map_err(|error| format!("{}: {error}", nvdisasm.display()))?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr);
        return Err(format!("nvdisasm of {}:\n{log}", cubin.display()));
    }
    let kernels = parse(&String::from_utf8_lossy(&output.stdout))?;
    Ok(kernels.into_iter().map(|(name, code)| (name, summary(&code))).collect())
}

/// Reads the listing of all kernels of a cubin.
fn parse(listing: &str) -> Result<BTreeMap<String, Vec<Instruction>>, String> {
    let mut kernels: BTreeMap<String, Vec<Instruction>> = BTreeMap::new();
    let mut labels: BTreeMap<&str, u32> = BTreeMap::new();
    let mut branches: Vec<(String, usize, &str)> = Vec::new();
    let (mut name, mut pending) = ("", Vec::new());
    for line in listing.lines() {
        let line = line.trim();
        if let Some(kernel) = line.strip_prefix(".text.").and_then(|rest| rest.strip_suffix(':')) {
            name = kernel;
            kernels.insert(name.into(), Vec::new());
        } else if let Some(label) = line.strip_suffix(':').filter(|l| l.starts_with(".L_x_")) {
            pending.push(label);
        } else if let Some(word) = word_of(line)
            && let Some(code) = kernels.get_mut(name)
        {
            let Some((address, text)) = line.strip_prefix("/*").and_then(|l| l.split_once("*/"))
            else {
                continue;
            };
            if line.starts_with("/* 0x") {
                let last = code.last_mut().ok_or_else(|| format!("{name}: a word alone"))?;
                (last.writes, last.waits) = ((word >> 46) as u32 & 7, (word >> 52) as u32 & 0x3f);
                continue;
            }
            let address = u32::from_str_radix(address, 16)
                .map_err(|error| format!("{name}: address {address}: {error}"))?;
            pending.drain(..).for_each(|label| {
                labels.insert(label, address);
            });
            let text = text.trim_start().split(';').next().unwrap_or_default();
            let mut words = text.split_whitespace().skip_while(|word| word.starts_with('@'));
            let instruction = words.next().unwrap_or_default().to_owned();
            if let Some((_, label)) = text.split_once("`(") {
                branches.push((name.into(), code.len(), label.trim_end().trim_end_matches(')')));
            }
            let pending = text.split_once("DEPBAR.LE SB0, ").map(|(_, count)| count.trim());
            let pending = pending.and_then(|count| {
                u32::from_str_radix(count.strip_prefix("0x")?.trim_end_matches(['{', '}']), 16).ok()
            });
            let name = instruction;
            let operands = text.split_once(name.as_str()).map_or("", |of| of.1);
            let register = |at: usize| register(operands.split(',').nth(at)?);
            let (result, addend) = (register(0), register(3));
            let read = Instruction { address, name, result, addend, pending, ..Default::default() };
            code.push(read);
        }
    }
    for (kernel, at, label) in branches {
        let target = labels.get(label).copied();
        kernels.get_mut(&kernel).expect("a kernel of the listing")[at].target = target;
    }
    match kernels.iter().find(|(_, code)| code.is_empty()) {
        Some((name, _)) => Err(format!("nvdisasm listed no instruction of {name}")),
        None if kernels.is_empty() => Err("nvdisasm listed no kernel".into()),
        None => Ok(kernels),
    }
}

/// The number of the register that `operand` is.
fn register(operand: &str) -> Option<u32> {
    operand.trim().trim_end_matches(".reuse").strip_prefix('R')?.parse().ok()
}

/// The hexadecimal word in the comment at the end of a line.
fn word_of(line: &str) -> Option<u64> {
    let word = line.strip_suffix("*/")?.rsplit_once("/* 0x")?.1;
    u64::from_str_radix(word.trim(), 16).ok()
}

/// Loops, as ranges of instructions from the target of a backward branch to the branch. A branch to
/// itself, after the end of a kernel, is none, nor is one back from behind the last EXIT, where a
/// test of an mbarrier that failed is repeated, out of the way.
fn loops(code: &[Instruction]) -> Vec<Range<usize>> {
    let exit = code.iter().rposition(|instruction| instruction.is("EXIT")).unwrap_or(code.len());
    let tests = |end: usize| code[end.saturating_sub(2)..end].iter().any(|test| test.is("SYNCS"));
    let ends = code.iter().enumerate().filter_map(|(end, instruction)| {
        let target = instruction.target.filter(|_| instruction.is("BRA"))?;
        let first = code.iter().position(|instruction| instruction.address == target)?;
        let is_retry = (first..end).contains(&exit) && tests(end);
        (first < end && !is_retry).then_some(first..end + 1)
    });
    ends.collect()
}

/// The hot loop of a kernel: the one with most products, without another that has products inside.
/// Without products, the one with most global loads, without a loop inside. The whole kernel if it
/// has no loop.
fn hot_loop(code: &[Instruction]) -> &[Instruction] {
    let count = |range: &Range<usize>, matches: fn(&Instruction) -> bool| {
        code[range.clone()].iter().filter(|instruction| matches(instruction)).count()
    };
    let mut all = loops(code);
    if all.iter().any(|range| count(range, Instruction::is_product) > 0) {
        all.retain(|range| count(range, Instruction::is_product) > 0);
    }
    let holds = |outer: &Range<usize>, inner: &Range<usize>| {
        outer != inner && outer.start <= inner.start && inner.end <= outer.end
    };
    let inner = all.iter().filter(|range| !all.iter().any(|other| holds(range, other)));
    let weight = |range: &&Range<usize>| {
        (count(range, Instruction::is_product), count(range, Instruction::is_global_load))
    };
    inner.max_by_key(weight).map_or(code, |range| &code[range.clone()])
}

fn summary(code: &[Instruction]) -> Sass {
    let hot = hot_loop(code);
    let count = |code: &[Instruction], name: &str| {
        code.iter().filter(|instruction| instruction.is(name)).count() as u32
    };
    let boards = hot.iter().filter(|instruction| instruction.is_weight_load());
    let boards = boards.fold(0u32, |mask, load| mask | (1 << load.writes));
    let longest = loops(code).into_iter().map(|range| range.len()).max().unwrap_or(0);
    let products: Vec<usize> = (0..hot.len()).filter(|&at| hot[at].is_product()).collect();
    let (first, last) = (products.first().copied(), products.last().copied());
    let lead = first.unwrap_or(hot.len());
    let wait = hot.iter().rposition(|instruction| instruction.is("WARPGROUP")).unwrap_or(hot.len());
    let gaps = products.windows(2).map(|pair| pair[1] - pair[0] - 1);
    Sass {
        instructions: hot.len() as u32 - count(hot, "NOP"),
        hmma: count(hot, "HMMA"),
        hgmma: count(hot, "HGMMA"),
        lead: lead as u32,
        span: last.map_or(0, |last| last + 1 - lead) as u32,
        gap: gaps.fold(lead, usize::max) as u32,
        ldg: count(hot, "LDG"),
        ldgsts: count(hot, "LDGSTS"),
        ldsm: count(hot, "LDSM"),
        mufu: count(hot, "MUFU"),
        late_mufu: count(&hot[wait..], "MUFU"),
        weight_scoreboards: (boards & 0x3f).count_ones(),
        zero_waits: exposed_waits(hot),
        broken_sums: broken_sums(hot),
        pending_groups: hot.iter().filter_map(|wait| wait.pending).min().unwrap_or(0),
        fences: code.iter().filter(|instruction| instruction.is_device_fence()).count() as u32,
        longest_loop_bytes: longest as u32 * INSTRUCTION_BYTES,
        text_bytes: code.len() as u32 * INSTRUCTION_BYTES,
    }
}

/// Products of a loop that add to zeros, or to what another instruction than a product of the loop
/// wrote: 0 where each sum is one chain, in the order of the loop. Sums of `HMMA` are four
/// registers, which may be others at each link.
fn broken_sums(hot: &[Instruction]) -> u32 {
    const SUMS: u32 = 4;
    let mut others = BTreeSet::new();
    let mut broken = 0;
    for instruction in hot {
        let Some(result) = instruction.result else { continue };
        let products = instruction.is_product();
        if products {
            let links = |first: u32| (first..first + SUMS).all(|of| !others.contains(&of));
            broken += u32::from(!instruction.addend.is_some_and(links));
        }
        for of in result..result + instruction.results(SUMS) {
            if products {
                others.remove(&of)
            } else {
                others.insert(of)
            };
        }
    }
    broken
}

/// Waits of a loop for weights with no product since the youngest load on the same scoreboard: a
/// scoreboard is waited for until it is zero, so the latency of that load is not hidden. Waits for
/// copies are counted: exposed is one that leaves none pending. The loop is walked twice, as its
/// end leads to its beginning.
fn exposed_waits(hot: &[Instruction]) -> u32 {
    let (mut young, mut exposed) = (0, [0, 0]);
    for count in &mut exposed {
        for instruction in hot {
            let copies_land = instruction.pending == Some(0);
            *count += u32::from(instruction.waits & young != 0 || copies_land);
            young &= !instruction.waits;
            if instruction.is_product() {
                young = 0;
            } else if instruction.is_weight_load() {
                young |= 1 << instruction.writes;
            }
        }
    }
    exposed[1]
}

#[cfg(test)]
mod tests;
