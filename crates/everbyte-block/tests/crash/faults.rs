//! Memory that fails before a crash: an answer of success stays true. A crash leaves sound memory: the failed
//! memory's contents are seen as they were stored.

use everbyte_block::Delta;

use crate::explore;
use crate::steps::{Case, Fault, HOLE, MAPPED, Step, ZERO, b, w, w2};

const FAULTS: [Fault; 5] =
    [Fault::Marks, Fault::UnknownMarks, Fault::Fences, Fault::Data(MAPPED + 1), Fault::Map(ZERO)];

fn write(at: u64, len: usize) -> Step {
    Step::Write(w(at, len))
}

fn again(at: u64, len: usize) -> Step {
    Step::Write(w2(at, len))
}

fn explored(name: &str, fault: Fault, steps: Vec<Step>) -> Case {
    Case::new(format!("{name}, {fault:?}"), steps).setup(|setup| setup.others = vec![("x", 8)])
}

fn all(name: &str, steps: impl Fn(Fault) -> Vec<Step>) {
    let case = |fault| explored(name, fault, steps(fault));
    explore::all(&explore::broad(), FAULTS.map(case));
}

/// Also for flushes after a failed one.
#[test]
fn successful_flush_is_durable() {
    all("flushes", |fault| {
        let fault = Step::Fault(fault);
        vec![write(b(MAPPED), 65), fault, Step::Flush, Step::Flush, again(b(HOLE), 9), Step::Flush]
    });
}

#[test]
fn successful_fua_write_is_durable() {
    all("durable writes", |fault| {
        let durable = |at, len| Step::Write(w2(at, len).fua());
        let fault = Step::Fault(fault);
        vec![
            write(b(MAPPED), 65),
            fault,
            durable(b(MAPPED) + 9, 65),
            durable(b(MAPPED + 2), 9),
            durable(b(MAPPED + 3), 4096),
            durable(b(MAPPED + 1), 9),
            Step::Flush,
            durable(b(MAPPED + 2), 4096),
        ]
    });
}

/// Writes on the direct path, durable or not.
#[test]
fn successful_direct_write_is_durable() {
    let steps = |fault| {
        let durable = |block, blocks: usize| Step::Write(w2(b(block), blocks * 4096).fua());
        vec![
            durable(MAPPED + 4, 2),
            Step::Fault(fault),
            write(b(MAPPED + 2), 8192),
            durable(MAPPED + 4, 3),
            durable(MAPPED, 3),
            Step::Flush,
            again(b(MAPPED + 2), 8192),
            durable(HOLE, 2),
        ]
    };
    let uncompared = |fault| {
        explored("direct writes", fault, steps(fault)).setup(|s| s.options.delta = Delta::Off)
    };
    explore::all(&explore::broad(), FAULTS.map(uncompared));
}

/// Volumes are closed by name: `a`, with failed memory, before `x`.
#[test]
fn close_with_faults_reports_lost_volumes() {
    all("shut down", |fault| {
        let other = Step::On("x", Box::new(write(9, 65)));
        vec![write(b(MAPPED), 65), other, Step::Fault(fault), Step::Close]
    });
    all("shut down after a flush that failed", |fault| {
        let other = Step::On("x", Box::new(write(9, 65)));
        vec![write(b(MAPPED), 65), Step::Fault(fault), Step::Flush, other, Step::Close]
    });
}
