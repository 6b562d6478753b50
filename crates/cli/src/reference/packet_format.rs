//! The reference page of the packet format. Its tables are generated from the documentation and the constants in
//! `weir_proto::wire::layout`; the text around them is here.

use super::markdown::{GENERATED, escape, item, paragraph};
use weir_proto::Geometry;
use weir_proto::wire::layout::{
    COMMON_BYTES, Common, FLAGS, Field, KNOWN_KINDS, Kind, REMOTE_KEY, TrailingField,
};
use weir_proto::wire::{
    CONTENTS_FRAME_BYTES, ContentsFrame, EAGER_HEADER_BYTES, EXTENSION_BYTES, LINK_FRAME_BYTES,
    LinkExtension, LinkFrame, MORE_HEADER_BYTES, REMOTE_HEADER_BYTES, TAG_BYTES, VERSION, WANT_FRAME_BYTES,
    WantFrame,
};

pub fn page() -> String {
    let mut page = format!("# Packet format\n\n{GENERATED}\n");
    page += &paragraph(&format!(
        "This page gives the bytes of every packet. All numbers are little-endian. The format has version {VERSION}. A \
         receiver refuses a packet of another version, of an unknown kind or with a flag that its kind does not have. It \
         then treats the sender as lost.",
    ));
    page += "\n";
    page += &paragraph(
        "The bytes are in `crates/proto/src/wire/layout.rs`. The values that they stand for are in \
         `crates/proto/src/packet.rs`.",
    );
    page += &slots();
    page += &common_header();
    page += &flags();
    page += &kinds();
    page += &fields_by_kind();
    page += &extension();
    page += &errors();
    page
}

fn slots() -> String {
    let Geometry { slot_bytes, max_packet_slots, .. } = Geometry::SHARED_MEMORY;
    let most_payload = |header_bytes: usize| (max_packet_slots * slot_bytes) as usize - header_bytes;
    let mut part = String::from("\n## Packet and slots\n\n");
    part += &paragraph(&format!(
        "In shared memory a mailbox consists of slots of {slot_bytes} bytes, one cache line each. A packet fills 1 to \
         {max_packet_slots} consecutive slots. The header starts at byte 0 of the first slot. The payload starts directly \
         behind the header.",
    ));
    part += &format!(
        "\n| packet | header bytes | most payload bytes ({max_packet_slots} slots) |\n|---|---|---|\n"
    );
    let rows = [
        ("`eager` without `acknowledge`", EAGER_HEADER_BYTES),
        ("`eager` with `acknowledge`", Kind::Eager.header_bytes(true)),
        ("`more`", MORE_HEADER_BYTES),
        (
            "`piece`, `write`, `group part`, `eager offer`, `atomic vector`, `atomic vector result`",
            REMOTE_HEADER_BYTES,
        ),
    ];
    for (packet, header_bytes) in rows {
        part += &format!("| {packet} | {header_bytes} | {} |\n", most_payload(header_bytes));
    }
    part += "| all others | 1 slot in all | 0 |\n\n";
    part += &paragraph(&format!(
        "A packet fills `(header bytes + payload bytes) / {slot_bytes}` slots, rounded up, and at least one. It costs one \
         credit for each slot. `credit` and `detach` packets cost no credit.",
    ));
    part
}

fn common_header() -> String {
    let mut part = format!("\n## Common header\n\nEvery packet begins with these {COMMON_BYTES} bytes.\n\n");
    part += &table(Common::FIELDS);
    part += "\n";
    part += &paragraph(
        "**Word.** In shared memory the value is `(position mod 2^31) + 1`. The position counts the slots of the lane since \
         it was attached. 0 means that the slot is empty. 0xffffffff means that the next packet is in slot 0 of the lane. \
         Only the first slot of a packet has this word; in the other slots these four bytes are payload. The reader sets \
         them to 0 when it retires the slot. On other links the word is the packet's position on the path.",
    );
    part += "\n";
    part += &paragraph(
        "**Credits in every header.** A receiver returns credits with any packet. The totals are cumulative, so a repeated \
         or a late packet grants nothing. The destination ignores totals of an earlier lane lease.",
    );
    part += "\n";
    part += &paragraph(
        "**Reserved.** No link carries more than 65,535 bytes of payload in a packet. So the upper two bytes of the payload \
         bytes are 0. A later version may put the rank there for which a proxy sends.",
    );
    part
}

fn flags() -> String {
    let mut part = String::from("\n## Flags\n\n| bit | name | in | meaning |\n|---|---|---|---|\n");
    for flag in FLAGS {
        let kinds: Vec<String> = Kind::ALL
            .iter()
            .filter(|kind| kind.flags() & 1 << flag.bit != 0)
            .map(|kind| format!("`{}`", kind.name()))
            .collect();
        let kinds =
            if kinds.len() == Kind::ALL.len() { String::from("every kind") } else { kinds.join(", ") };
        part += &format!("| {} | {} | {kinds} | {} |\n", flag.bit, flag.name, escape(flag.meaning.trim()));
    }
    part += "\nAll other bits are 0.\n\n";
    part += &trailing(&REMOTE_KEY);
    part
}

/// What is said about a field behind the header.
fn trailing(field: &TrailingField) -> String {
    let TrailingField { flag, kinds, bytes } = field;
    let place = |kind: Kind| {
        let first = field.offset(kind);
        format!("{first}–{} of `{}`", first + bytes - 1, kind.name())
    };
    let places: Vec<String> = kinds.iter().map(|&kind| place(kind)).collect();
    paragraph(&format!(
        "**Remote key.** Bit {}, {}: {} Its place is bytes {}. Only links over datagrams have it, for core providers that read \
         and write memory by themselves. In shared memory a packet with the bit is malformed.",
        flag.bit,
        flag.name,
        flag.meaning,
        places.join(", "),
    ))
}

fn kinds() -> String {
    let mut part = String::from("\n## Kinds\n\n| kind | name | meaning |\n|---|---|---|\n");
    for &kind in Kind::ALL {
        part += &format!("| {} | `{}` | {} |\n", kind as u8, kind.name(), escape(kind.meaning().trim()));
    }
    part
}

fn fields_by_kind() -> String {
    let (with_fields, without): (Vec<Kind>, Vec<Kind>) =
        Kind::ALL.iter().partition(|kind| !kind.fields().is_empty());
    let mut part = String::from("\n## Fields by kind\n\n");
    let names: Vec<String> = without.iter().map(|kind| format!("`{}`", kind.name())).collect();
    part += &paragraph(&format!(
        "Other bytes before the payload are 0, and the receiver does not read them. Kinds without fields of their own: {}.",
        names.join(", ")
    ));
    part += "\n";
    part += &paragraph(
        "Operations of `atomic` and `atomic vector`: 0 read, 1 write, 2 compare and swap, 3 sum, 4 min, 5 max, 6 and, 7 or, \
         8 xor, 9 product, 10 logical and, 11 logical or, 12 logical xor, 13 difference. 14 to 18 swap if `compare` is not \
         equal to the word, at most as large, less, at least as large, greater. 19 swaps the bits that `compare` has.",
    );
    for group in with_fields.chunk_by(|a, b| a.fields() == b.fields()) {
        let names: Vec<String> =
            group.iter().map(|&kind| format!("`{}` ({})", kind.name(), kind as u8)).collect();
        part += &format!("\n### {}\n\n{}", names.join(", "), table(group[0].fields()));
    }
    part
}

fn extension() -> String {
    let mut part = String::from("\n## Link extension\n\n");
    part += &paragraph(&format!(
        "A link that can lose packets sends datagrams. A datagram begins with these {EXTENSION_BYTES} bytes. Packets and \
         link frames follow, or nothing. The last {TAG_BYTES} bytes are an authentication tag of everything before it. All \
         behind the extension is encrypted. The cipher is AEGIS-128L (RFC 10032). If both endpoints want less, all stays \
         readable, and the tag is that of the same cipher (`FI_WEIR_PROTECTION=authenticate`) or a secret of the path, the same \
         in each datagram (`off`). Shared memory loses nothing and has no extension.",
    ));
    part += "\n";
    part += "\n";
    part += &table(LinkExtension::FIELDS);
    part += "\n";
    part += &paragraph(
        "The extension acknowledges datagrams by number and packets by word. The word of each packet orders packets. All \
         packets of a datagram have the same word. A packet that is sent again is in a datagram with a new number, and keeps \
         its word.",
    );
    part += "\n";
    part += &paragraph(
        "**Introduction.** If the destination epoch is 0, the extension is followed by 16 random bytes, the salt, then by the \
         sender's address (64 bytes, encrypted), and the tag. The key comes from the receiver's key and \
         identity, and the salt is the nonce. The key of all other datagrams comes from the keys and identities of both \
         addresses, one for each direction. Their nonce is their number in 64 bits, the sender's epoch and the destination's. \
         `crates/link/src/datagram/seal.rs` has the details.",
    );
    part += &format!(
        "\n### Link frames\n\n{}",
        paragraph(&format!(
            "A link frame has {LINK_FRAME_BYTES} bytes. Its word, version and kind are where a packet has them. A packet that is \
             longer than what is left of a datagram ends with the datagram, in its payload. The next datagrams begin with a frame \
             `rest`, which is followed by so many bytes of that payload. A datagram that must be as long as others ends with the \
             frame `fill` and zeros, or where less than {LINK_FRAME_BYTES} bytes are left, with the inverted bytes of its word."
        )),
    );
    part += "\n";
    part += &table(LinkFrame::FIELDS);
    part += "\n";
    part += &paragraph(&format!(
        "With a frame `want` of {WANT_FRAME_BYTES} bytes, the receiver of an announced message asks for contents. Over UDP they \
         come behind frames `contents` of {CONTENTS_FRAME_BYTES} bytes, in order and from the beginning. Over a core provider, on \
         protected paths, they come in a tagged message of the core (`fi_tsend`): the number in 8 bytes, the contents, encrypted \
         or authenticated as datagrams are, and the tag (16 bytes). Without contents it says that nobody offers this memory. The key \
         comes from the keys and identities of both addresses, one for each direction, and is not that of datagrams. The nonce is \
         the number in 64 bits, the sender's epoch and the destination's.",
    ));
    part += "\n";
    part += &table(WantFrame::FIELDS);
    part += "\n";
    part += &table(ContentsFrame::FIELDS);
    part
}

fn errors() -> String {
    let mut part = String::from("\n## Errors\n\n");
    let conditions = [
        format!("version: byte 4 is not {VERSION}."),
        format!("kind: byte 5 is none of {KNOWN_KINDS}."),
        String::from("flags: the kind does not have the flag, or a `write` with `has data` is not the last."),
        String::from("payload: more than the link allows, or payload in a kind that has none."),
        String::from(
            "length: an `eager` packet has more payload than its message is long, or an `eager offer` has less or more.",
        ),
        String::from(
            "word: an `atomic`, an `atomic vector` or a `group part` has an unknown operation or type, or a bitwise \
             operation on a float; or the kind does not have the operation.",
        ),
        String::from("collective: a `group part` has none of the listed operations."),
        String::from("fault: a `group failed` has none of the listed reasons."),
        String::from("nothing left: a `write` without `last` says that 0 bytes follow."),
        String::from("truncated: a datagram ends within a header, or the rest of a packet does not follow."),
    ];
    for condition in conditions {
        part += &item(&condition);
    }
    part += "\n";
    part += &paragraph(
        "The receiver counts each such packet in `malformed_packets`, and prints the first one. The simulator uses the same \
         packets as values; the sizes of their headers and slots there belong to the modelled network.",
    );
    part
}

fn table(fields: &[Field]) -> String {
    let mut table = String::from("| bytes | type | field | meaning |\n|---|---|---|---|\n");
    for field in fields {
        let last = field.offset + field.bytes - 1;
        let range =
            if last == field.offset { last.to_string() } else { format!("{}–{last}", field.offset) };
        table += &format!(
            "| {range} | u{} | {} | {} |\n",
            8 * field.bytes,
            field.name.replace('_', " "),
            escape(field.meaning.trim())
        );
    }
    table
}
