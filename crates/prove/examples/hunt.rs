use weir_prove::{explore::*, model::*, suite};
use weir_proto::flow::Mutant;
fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let cap: u32 = std::env::args().nth(1).unwrap().parse().unwrap();
    let limits = Limits { states: cap, threads: 1, ..Limits::default() };
    for s in suite::candidates() {
        let r = explore(&s, limits, |_, _| {});
        println!("OURS {} {} complete {} {:?} {:?} {:?}", s.name, r.states, r.complete, r.happened, r.time, r.failure.map(|f| f.0));
    }
    for m in Mutant::ALL {
        for inner in [true, false] {
            for s in suite::candidates() {
                let s = Setup { rule: Rule::Wrong(m), inner_checks: inner, ..s };
                let r = explore(&s, limits, |_, _| {});
                if let Some((v, path)) = &r.failure {
                    println!("{m:?} inner={inner} {} states {} moves {} {}: {}", s.name, r.states, path.len(), v.check, v.detail);
                    if inner || v.check == "I4" || v.check == "I2" { break; }
                }
            }
        }
    }
}
