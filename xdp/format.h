/* Format of packets of the kernel programs. crates/nic/src/format.rs has the same numbers; a test compares them.
 * docs/notes/2026-11-27-kernel-programs.md says what they mean. */
#pragma once

#define WEIR_MAGIC 0x4b726577 /* "werK" */
#define WEIR_VERSION 2
#define WEIR_PORT 30565

/* Byte 5: what a packet is, and how it travels. */
#define WEIR_KIND_WORD 1
#define WEIR_KIND_ARRIVE 2
#define WEIR_KIND_REPLY 3
#define WEIR_KIND_REDUCE 4
#define WEIR_KIND_SUBSCRIBE 5
#define WEIR_KIND_COPIES 6
#define WEIR_KIND_COPY 7
#define WEIR_KIND_ACKNOWLEDGE 8
#define WEIR_KIND_MULTI_SEND 6 /* bits of WEIR_KIND_COPIES and WEIR_KIND_COPY, and of no other kind */
#define WEIR_KIND_MASK 0x3f
#define WEIR_RELAYED 0x40 /* a host has sent it back to the host that it came from */
#define WEIR_RELAY 0x80   /* the host that gets it sends it back */

/* Byte 6 of WEIR_KIND_WORD. */
#define WEIR_READ 0
#define WEIR_ADD 1
#define WEIR_SWAP 2
#define WEIR_COMPARE_SWAP 3
#define WEIR_AND 4
#define WEIR_OR 5
#define WEIR_XOR 6

/* Byte 6 of WEIR_KIND_REDUCE: an operation and a type. */
#define WEIR_VECTOR_OPERATION 0x0f
#define WEIR_VECTOR_SUM 0
#define WEIR_VECTOR_MIN 1
#define WEIR_VECTOR_MAX 2
#define WEIR_VECTOR_AND 3
#define WEIR_VECTOR_OR 4
#define WEIR_VECTOR_PROD 5
#define WEIR_VECTOR_TYPE 0xf0
#define WEIR_VECTOR_U32 0x00
#define WEIR_VECTOR_I32 0x10
#define WEIR_VECTOR_U64 0x20
#define WEIR_VECTOR_I64 0x30
#define WEIR_VECTOR_F32 0x40
#define WEIR_VECTOR_F64 0x50

/* Byte 7 of WEIR_KIND_REPLY. */
#define WEIR_DONE 0
#define WEIR_NO_SUCH_WORD 1
#define WEIR_NO_SUCH_OPERATION 2
#define WEIR_TABLE_FULL 3
#define WEIR_MEMBERS_MISSING 4
#define WEIR_MEMBERS_DIFFER 5

/* Counters, one of each processor. */
#define WEIR_COUNT_REQUESTS 0
#define WEIR_COUNT_DUPLICATES 1
#define WEIR_COUNT_OLD 2
#define WEIR_COUNT_REFUSED 3
#define WEIR_COUNT_RELAYED 4
#define WEIR_COUNT_RELEASES 5
#define WEIR_COUNT_MALFORMED 6
#define WEIR_COUNT_OTHER_VERSION 7
#define WEIR_COUNT_STRANGERS 8
#define WEIR_COUNT_FORGED 9
#define WEIR_COUNT_DELIVERED 10
#define WEIR_COUNT_ACKNOWLEDGED 11
#define WEIR_COUNTERS 12

/* Bounds. */
#define WEIR_MAX_DOMAINS 64
#define WEIR_WORDS 4096
#define WEIR_REPLY_SLOTS 1024
#define WEIR_MAX_ASKERS 4096
#define WEIR_UNANSWERED 8
#define WEIR_MAX_MEMBERS 32
#define WEIR_MAX_MEMBER_ENTRIES 4096
#define WEIR_MAX_VECTOR_WORDS 128
#define WEIR_MAX_VECTORS 1024

/* A reply slot: four words behind the words of a domain, in which a process of this host waits for the reply to a request. The
 * lowest bits of its asker are the number of the slot. The state is the number of the request, shifted by two, and a step. */
#define WEIR_SLOT_WORDS 4
#define WEIR_SLOT_ASKER 0
#define WEIR_SLOT_STATE 1
#define WEIR_SLOT_RESULT 2
#define WEIR_SLOT_STATUS 3
#define WEIR_SLOT_WAITING 1
#define WEIR_SLOT_CLAIMED 2
#define WEIR_SLOT_WRITTEN 3

/* An inbox: words of a receiver. The number of the last message that the process has taken, and two buffers. A buffer has a state,
 * with the number of its message as that of a slot, the length of the message in words, and the message. */
#define WEIR_BUFFER_WORDS (2 + WEIR_MAX_VECTOR_WORDS)
#define WEIR_INBOX_WORDS (1 + 2 * WEIR_BUFFER_WORDS)

/* Begins the payload of a UDP datagram. WEIR_KIND_REDUCE, its reply, WEIR_KIND_COPIES and WEIR_KIND_COPY have a vector of 64-bit
 * words behind it, which the tag covers. All numbers are little endian. No member needs padding. */
struct weir_packet {
    unsigned int magic;
    unsigned char version;
    unsigned char kind;
    unsigned char operation;
    unsigned char status;
    unsigned long long domain;
    unsigned long long asker;
    unsigned long long number;
    unsigned long long place;
    unsigned long long compare;
    unsigned long long operand;
    unsigned long long tag;
};
