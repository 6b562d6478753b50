//! The wire format: packets survive encoding, and arbitrary bytes give a packet or a typed error.

use proptest::prelude::*;
use weir_proto::wire::{self, PacketError};
use weir_proto::{Body, Marks, Packet, Space, Transfer};

fn space() -> impl Strategy<Value = Space> {
    prop_oneof![Just(Space::Tagged), Just(Space::Untagged)]
}

fn body() -> impl Strategy<Value = Body> {
    let transfer = || any::<u32>().prop_map(Transfer);
    prop_oneof![
        (space(), any::<u64>(), any::<Option<u64>>(), 100u32.., proptest::option::of(transfer())).prop_map(
            |(space, tag, data, length, acknowledge)| Body::Eager { space, tag, data, length, acknowledge }
        ),
        any::<u32>().prop_map(|offset| Body::More { offset }),
        (space(), any::<u64>(), any::<Option<u64>>(), any::<u64>(), any::<u64>(), transfer()).prop_map(
            |(space, tag, data, length, address, transfer)| {
                Body::Rendezvous { space, tag, data, length, address, transfer }
            }
        ),
        Just(Body::Credit),
        Just(Body::Goodbye),
        Just(Body::Detach),
        (transfer(), any::<u32>(), any::<bool>()).prop_map(|(transfer, count, refused)| Body::Finished {
            transfer,
            count,
            refused
        }),
        (transfer(), transfer(), any::<u64>()).prop_map(|(transfer, reply, length)| Body::Fetch {
            transfer,
            reply,
            length
        }),
        (transfer(), any::<u64>(), any::<bool>()).prop_map(|(transfer, offset, last)| Body::Piece {
            transfer,
            offset,
            last
        }),
        (transfer(), any::<u64>(), any::<u64>(), any::<Option<u64>>())
            .prop_map(|(transfer, key, offset, data)| Body::Write { transfer, key, offset, left: 0, data }),
        (transfer(), any::<u64>(), any::<u64>(), 1u64..).prop_map(|(transfer, key, offset, left)| {
            Body::Write { transfer, key, offset, left, data: None }
        }),
        (transfer(), any::<u64>(), any::<u64>(), any::<u64>())
            .prop_map(|(transfer, key, offset, length)| Body::Read { transfer, key, offset, length }),
        (transfer(), any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
            |(transfer, key, offset, length, write)| Body::Locate { transfer, key, offset, length, write }
        ),
        (transfer(), any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
            |(transfer, key, offset, address, refused)| Body::Located {
                transfer,
                key,
                offset,
                address,
                refused
            }
        ),
        Just(Body::ReturnRequest),
        any::<u32>().prop_map(|credits| Body::ReturnResponse { credits }),
        (any::<u64>(), any::<u64>()).prop_map(|(data, bytes)| Body::Written { data, bytes }),
    ]
}

proptest! {
    #[test]
    fn packets_survive_encoding(
        body in body(),
        (epoch, credit_packets_read, granted_total, origin, number) in any::<(u16, u16, u32, u32, u32)>(),
        (rendezvous_only, backlogged) in any::<(bool, bool)>(),
        payload_bytes in 0u32..100,
    ) {
        let carries = matches!(body, Body::Eager { .. } | Body::More { .. } | Body::Piece { .. } | Body::Write { .. });
        let payload_bytes = if carries { payload_bytes } else { 0 };
        let marks = Marks { rendezvous_only, backlogged };
        let packet =
            Packet { epoch, credit_packets_read, granted_total, origin, number, payload_bytes, marks, body };
        let mut slot = [0xee; wire::SLOT_BYTES];
        wire::encode(&packet, &mut slot);
        prop_assert_eq!(&slot[..4], &[0xee; 4], "the sequence is the link's");
        prop_assert_eq!(wire::decode(&slot, 100), Ok(packet));
        if let Some((first, words)) = wire::eager_words(&packet) {
            let words: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
            prop_assert_eq!(&slot[4..48], [&first.to_le_bytes()[..], &words].concat(), "the same, word by word");
        } else {
            let plain = matches!(body, Body::Eager { acknowledge: None, .. });
            prop_assert!(!plain, "it has such words");
        }
    }

    #[test]
    fn arbitrary_bytes_decode_or_are_rejected(mut slot in any::<[u8; 64]>(), kind in 0u8..20) {
        slot[4] = wire::VERSION << 4;
        slot[5] = kind;
        if let Ok(packet) = wire::decode(&slot, 4000) {
            prop_assert!(packet.payload_bytes <= 4000);
        }
    }
}

#[test]
fn malformed_headers_are_rejected() {
    let mut slot = [0; wire::SLOT_BYTES];
    assert_eq!(wire::decode(&slot, 0), Err(PacketError::Version { have: 0 }));
    slot[4] = wire::VERSION << 4;
    assert_eq!(
        wire::decode(&slot, 0).map_err(|e| e.to_string()),
        Err("packet kind 0, known are 1 to 16".into())
    );
    slot[5] = 2;
    slot[24] = 200;
    assert_eq!(wire::decode(&slot, 100), Err(PacketError::Payload { have_bytes: 200, allowed_bytes: 100 }));
}
