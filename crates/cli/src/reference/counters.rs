//! The reference page of counters, generated from the documentation of `weir_proto::Counters`.

use super::markdown::{GENERATED, escape, item, paragraph};
use weir_proto::{Counters, PACKET_KINDS};

pub fn page() -> String {
    let mut page = format!("# Counters\n\n{GENERATED}\n");
    page += &paragraph(
        "Each endpoint counts what it does from the moment when it is created. `weir run --json` writes the counters of each \
         rank, and `weir run --report` draws some of them over time.",
    );
    page += "\n";
    for (name, meaning) in Counters::NAMES.iter().zip(Counters::MEANINGS) {
        page += &item(&format!("`{name}`: {}", escape(meaning.trim())));
    }
    page += "\n## Loans\n\n";
    page += &paragraph(
        "With credits on demand, `weir run --json` also has `lending` for each rank: what it can lend at the end, and what it \
         has lent. The fields are described in [JSON formats](json.md#weir-run).",
    );
    page += "\n## Packets by kind\n\n";
    page += &paragraph(&format!(
        "The report shows the packets that an endpoint sent by kind: {}. Their sum is `packets_sent`. The kinds are \
         described in [Packet format](packet-format.md).",
        PACKET_KINDS.map(|kind| format!("`{kind}`")).join(", ")
    ));
    page
}
