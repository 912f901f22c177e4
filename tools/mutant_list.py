"""The mutants that tools/mutants.py tries: single lines of the core that are wrong, as a hurried programmer might leave
them, and who is likely to notice. tests/house/test_mutants.py keeps the list true to the sources.

A killer is a node id of pytest, perhaps with `-k EXPRESSION` behind it, or `ctest NAME`. The most likely comes first.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One wrong line.

    Attributes:
        old: what stands in the file exactly once; more than the line itself where that alone is not unique.
        new: what is there instead.
        breaks: the behaviour that becomes wrong.
        killers: who is tried first.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    killers: tuple[str, ...]


VERIFIER = "tests/verify/test_verifier.py::test_small_groups_are_right_in_every_setting"
LARGE_GROUPS = "tests/verify/test_verifier.py::test_large_groups_are_right_for_every_root"
BACK_TO_BACK = "tests/verify/test_verifier.py::test_halves_and_back_to_back_calls_are_right"
PARTS = "tests/verify/test_verifier.py::test_parts_of_different_lengths_are_right"
VERIFIED_MUTANTS = "tests/verify/test_verifier.py::test_every_mutant_is_rejected"
MISMATCH = "tests/failures/test_failures_mismatch.py::test_every_rank_raises"
MISMATCH_OF_PARTS = "tests/failures/test_failures_mismatch_parts.py::test_every_rank_raises"
EVERY_ROOT = "tests/calls/test_conformance.py::test_every_root"
SMALL = "tests/calls/test_conformance.py::test_everything_small"
BORDERS = "tests/calls/test_conformance.py::test_at_the_borders_of_bounce_buffers"
MANY_IN_FLIGHT = "tests/calls/test_conformance_order.py::test_many_in_flight"
LEAVES_EARLY = "tests/failures/test_failures_death.py::test_leaves_early"
KILLED = "tests/failures/test_failures_death.py::test_killed_while_others_wait"
CTRL_C = "tests/failures/test_failures.py::test_ctrl_c"
DEADLINE = "tests/failures/test_failures.py::test_deadline_names_a_stopped_rank"
ORDERS = "tests/model/test_orders.py"
MALFORMED = "ctest malformed_frames_test"
FUZZ = "ctest frames_fuzz"
ENGINE = "ctest engine_test"
SLOTS = "ctest slots_test"

MUTANTS = (
    # --- core/ ---
    Mutant(
        "dtype-size",
        "csrc/core/dtypes.h",
        '"complex128",    16,',
        '"complex128",    8,',
        "a complex128 is taken for 8 bytes, so a reduction works on twice as many",
        ("tests/calls/test_even_parts.py::test_scatter_of_every_element_type", SMALL),
    ),
    Mutant(
        "part-border",
        "csrc/schedule/schedule.cc",
        "const auto border = [&](int i) { return i == parts ? bytes : units * i / parts * unit; };",
        "const auto border = [&](int i) { return units * i / parts * unit; };",
        "what is left when a buffer is cut by cache lines belongs to no rank",
        (VERIFIER, BORDERS),
    ),
    Mutant(
        "region-of-reader",
        "csrc/schedule/algorithm.cc",
        "before += r != from && part_bytes(from, r, size) > 0 ? 1 : 0;",
        "before += part_bytes(from, r, size) > 0 ? 1 : 0;",
        "a rank counts itself among the readers of its bounce buffer, whose last region lies beyond the slot",
        (PARTS, "tests/calls/test_conformance_parts.py::test_at_the_borders_of_bounce_buffers"),
    ),
    Mutant(
        "signature-root",
        "csrc/core/signature.cc",
        "s.root = static_cast<std::uint16_t>(root);",
        "s.root = static_cast<std::uint16_t>(root & 0);",
        "the signature has no root: ranks that disagree about it do not hear of it, and a plan serves any root",
        (EVERY_ROOT, MISMATCH),
    ),
    Mutant(
        "signature-lists",
        "csrc/core/signature.cc",
        "total | (counts.size() > 1 ? above_count(hash_of(counts)) : 0);",
        "total | (counts.size() > 2 ? above_count(hash_of(counts)) : 0);",
        "lists of two tensors with the same total pass for the same",
        (MISMATCH, MISMATCH_OF_PARTS),
    ),
    Mutant(
        "fifo-stride",
        "csrc/memory/domain.cc",
        "fifo_stride = round_up(kFifoCells * (kCacheLine + kFifoCellBytes), page);",
        "fifo_stride = round_up(kFifoCells * kFifoCellBytes, page);",
        "the end of the last cell of a fifo lies on the first cell of the next",
        ("ctest domain_test",),
    ),
    # --- algorithms/ ---
    Mutant(
        "ring-last-part",
        "csrc/algorithms/all_reduce_ring.cc",
        "if (part_of(problem.bytes(), unit, n, (me + 2) % n).bytes > 0) {",
        "if (part_of(problem.bytes(), unit, n, (me + 1) % n).bytes > 0) {",
        "a rank whose last part is the only one that is not empty returns before it is there",
        (VERIFIER,),
    ),
    Mutant(
        "tree-root",
        "csrc/algorithms/broadcast_tree.cc",
        "const int virtual_rank = (topology.rank + n - problem.root) % n;",
        "const int virtual_rank = topology.rank;",
        "the tree grows from rank 0 whoever the root is",
        (LARGE_GROUPS, EVERY_ROOT),
    ),
    Mutant(
        "two-shot-scratch",
        "csrc/algorithms/all_reduce_two_shot.cc",
        "slot_ = std::max(own(std::min(chunk_bytes, problem.bytes())), own(problem.bytes() % chunk_bytes));",
        "slot_ = own(std::min(chunk_bytes, problem.bytes()));",
        "where the own part of the shorter chunk at the end is the longest, contributions overlap in scratch memory",
        ("tests/verify/test_verifier.py::test_the_pipeline_over_links_is_right", VERIFIER),
    ),
    Mutant(
        "scratch-reused",
        "csrc/algorithms/reduce_scatter_ring.cc",
        "if (c.index > 0 && n > 2) {",
        "if (c.index > 1 && n > 2) {",
        "sums of the second segment are written where those of the first have not left yet",
        (PARTS, BACK_TO_BACK),
    ),
    Mutant(
        "read-not-told",
        "csrc/algorithms/broadcast_one_shot.cc",
        "if (c.index + slots < chunks) {",
        "if (c.index + slots + 1 < chunks) {",
        "the root waits for ever to fill its last slot again",
        (VERIFIER,),
    ),
    # --- transports/ ---
    Mutant(
        "fifo-full",
        "csrc/transports/mapped/link.cc",
        "if (written_ - acknowledged_ == kFifoCells) {\n          return moved;",
        "if (written_ - acknowledged_ > kFifoCells) {\n          return moved;",
        "a cell is filled again before it has been read",
        (ENGINE, BORDERS),
    ),
    Mutant(
        "mail-received",
        "csrc/transports/mapped/mail.cc",
        "    s.received += used;\n",
        "",
        "of a message a little longer than what goes unasked, the rest is never asked for",
        ("tests/messages/test_messages.py::test_sizes", "tests/messages/test_messages_flow.py"),
    ),
    Mutant(
        "mail-not-taken",
        "csrc/transports/mapped/mail.cc",
        "      --unexpected_;\n      count_opened();",
        "      --unexpected_;",
        "the sender is not told that an early message was asked for, and in the end begins none any more",
        (
            "tests/messages/test_messages_flow.py::test_unexpected_messages_are_bounded",
            "tests/messages/test_messages_flow.py::test_a_blocking_send_beyond_the_limit_waits",
        ),
    ),
    Mutant(
        "reduced-twice",
        "csrc/transports/consume.h",
        "      request.source.advance(piece.bytes);\n",
        "",
        "a reduction that arrives in two cells takes the own share of the first for both",
        (ENGINE, BORDERS),
    ),
    Mutant(
        "report-length",
        "csrc/transports/tcp/wire.cc",
        "return length <= kMaxReportBytes;",
        "return length <= UINT32_MAX;",
        "a peer can make a rank keep a report of 4 GiB",
        (MALFORMED, FUZZ),
    ),
    Mutant(
        "window-of-strangers",
        "csrc/transports/tcp/flow_control.h",
        "s.announced + (s.started ? wire::kWindowBytes : wire::eager_bytes(s.key.communicator));",
        "s.announced + wire::kWindowBytes;",
        "a peer can send a whole window of a stream that nobody has opened",
        (MALFORMED, "ctest tcp_link_test"),
    ),
    Mutant(
        "partial-element",
        "csrc/transports/tcp/delivery.cc",
        "  s.partial_bytes = left;\n",
        "  s.partial_bytes = 0;\n",
        "the first bytes of an element that is cut between two packets are lost",
        ("ctest tcp_link_test", ENGINE),
    ),
    Mutant(
        "sendrecv-mismatch",
        "csrc/transports/tcp/short_sendrecv.cc",
        " || !(h.signature == sendrecv.signature) ||",
        " ||",
        "short messages of two ranks that mean different calls are reduced",
        ("ctest tcp_link_sendrecv_test", MISMATCH),
    ),
    # --- memory/ ---
    Mutant(
        "seal",
        "csrc/memory/memfd.cc",
        "F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL",
        "F_SEAL_GROW | F_SEAL_SEAL",
        "a peer can shrink a segment, and whoever touches it dies by SIGBUS",
        ("ctest memfd_test",),
    ),
    # --- reduce/ ---
    Mutant(
        "kernel-tail",
        "csrc/reduce/loop.h",
        "for (; count - i >= kLanes * kUnroll; i += kLanes * kUnroll) {",
        "for (; count - i > kLanes * kUnroll; i += kLanes * kUnroll) {",
        "the last element is left out, where elements have four bytes and more",
        ("tests/reduce/test_reducers.py::test_matches_the_tree_model",),
    ),
    Mutant(
        "kernel-tree",
        "csrc/reduce/reduction.h",
        "const int left_sources = middle(0, n);\n  for (",
        "const int left_sources = n / 2;\n  for (",
        "of an odd number of more than eight sources the halves differ from those of the canonical tree",
        ("tests/reduce/test_reducers.py -k many_sources", "tests/startup/test_replicas.py"),
    ),
    Mutant(
        "kernel-rounding",
        "csrc/reduce/halves.h",
        "return bits + 0x7fff + ((bits >> 16) & 1);",
        "return bits + 0x8000;",
        "bfloat16 halfway between two values is rounded up instead of to even",
        ("tests/reduce/test_reducers.py -k ties_go_to_even",),
    ),
    # --- engine/ ---
    Mutant(
        "waits-unpublished",
        "csrc/engine/failure/monitor.cc",
        "  report.waits = waits;\n",
        "",
        "a rank that gives up does not say for whom it waited, so others blame it instead of the one behind it",
        ("ctest suspect_test", DEADLINE, "tests/failures/test_explain.py"),
    ),
    Mutant(
        "guard-of-slots",
        "csrc/engine/slot_guard.cc",
        "begins_[kept % kHeaderLines] < reach - slots) {",
        "begins_[kept % kHeaderLines] + 1 < reach - slots) {",
        "a slot is filled again one collective too early",
        (SLOTS, MANY_IN_FLIGHT),
    ),
    Mutant(
        "guard-of-pitch",
        "csrc/engine/slot_guard.cc",
        "[[unlikely]] {\n    return work.sequence;",
        "[[unlikely]] {\n    return by_headers;",
        "slots that lie otherwise than before are filled while others still read the old ones",
        (SLOTS,),
    ),
    Mutant(
        "last-call-timeout",
        "csrc/engine/repeated_calls.h",
        "           last_.timeout_s == call.timeout_s &&\n",
        "",
        "the same call again with another timeout keeps the old one",
        ("tests/failures/test_failures.py::test_deadline_of_the_last_call_again_with_another_timeout",),
    ),
    Mutant(
        "completed-too-early",
        "csrc/engine/executor/flag_words.h",
        "work.sequence + 1 - (word & 0xff));",
        "work.sequence + 1 - (word & 0));",
        "who has entered a collective passes for one that has completed all before",
        (SLOTS, MANY_IN_FLIGHT, ENGINE),
    ),
    Mutant(
        "flag-of-loop",
        "csrc/engine/executor/flag_words.h",
        "const std::uint64_t index = work.base + flag.chunk + work.iteration;\n    return seen(",
        "const std::uint64_t index = work.base + flag.chunk;\n    return seen(",
        "in a loop the signal of its first round lets all others pass",
        (ENGINE, "tests/calls/test_conformance.py::test_tiny_bounce_buffers"),
    ),
    Mutant(
        "header-relaxed",
        "csrc/engine/executor/flag_words.h",
        "line.word.store((work.sequence + 1) << 8 | incomplete, std::memory_order_release);",
        "line.word.store((work.sequence + 1) << 8 | incomplete, std::memory_order_relaxed);",
        "on processors weaker than x86 the word of a header may be seen before what it publishes",
        (ORDERS,),
    ),
    Mutant(
        "report-to-neighbours",
        "csrc/engine/failure/failure_reports.cc",
        "      domain_->control(r).aborted.store(1, std::memory_order_release);\n",
        "",
        "ranks of this host do not learn that this one has failed",
        (CTRL_C, KILLED),
    ),
    Mutant(
        "report-over-links",
        "csrc/engine/members.cc",
        "      link->send_control(text);\n",
        "",
        "ranks of other hosts do not learn that this one has failed",
        (CTRL_C, DEADLINE),
    ),
    Mutant(
        "leaving-unpublished",
        "csrc/engine/communicator.cc",
        "    domain_->control(rank()).left.store(1 + in_flight_.next_sequence(), std::memory_order_release);\n",
        "",
        "others wait for a rank that has closed the communicator",
        (LEAVES_EARLY, "ctest groups_test"),
    ),
    Mutant(
        "no-majority",
        "csrc/engine/groups/agreement.cc",
        "return 2 * ranks.count() > size_ || all.count() == size_;",
        "return 2 * ranks.count() >= size_ || all.count() == size_;",
        "two halves that do not reach each other both go on as the survivors",
        ("ctest agreement_test", "tests/groups/test_shrink.py::test_no_majority"),
    ),
    Mutant(
        "tag-forgotten",
        "csrc/engine/messages.cc",
        "counts_[{message.peer, message.tag, message.sending}]++",
        "counts_[{message.peer, 0, message.sending}]++",
        "messages of different tags count together, so they meet only in the order in which they were sent",
        ("tests/messages/test_messages.py::test_tags_out_of_order",),
    ),
    # --- verify/ ---
    Mutant(
        "verifier-overwrites",
        "csrc/verify/shadow.cc",
        "    if (!knows(*actor.clock, reader)) {",
        "    if (!knows(*actor.clock, cell.writer)) {",
        "the verifier lets a rank overwrite what another may still be reading",
        (VERIFIED_MUTANTS,),
    ),
    # --- bindings/ ---
    Mutant(
        "out-of-other-type",
        "csrc/bindings/calls/vector_calls.cc",
        "if (a.out->dtype != a.x.dtype || a.out->dimensions != a.x.dimensions ||",
        "if (a.out->dimensions != a.x.dimensions ||",
        "an output of another element type is filled beyond its end",
        (
            "tests/calls/test_bad_input_parts.py::test_an_out_that_does_not_fit_keeps_nobody_waiting",
            "tests/calls/test_bad_input_parts.py::test_a_bad_call_raises_and_does_no_harm",
        ),
    ),
    # --- python/ ---
    Mutant(
        "strangers-may-talk",
        "python/collectives/_startup/wire.py",
        "    if length > limit:\n",
        "    if length > MEMBER_LIMIT:\n",
        "a stranger can make rank 0 take in 64 MiB before it has proven anything",
        ("tests/startup/test_rendezvous.py::test_a_stranger_may_not_say_much", "tests/startup/test_strangers.py"),
    ),
    Mutant(
        "proof-role",
        "python/collectives/_startup/wire.py",
        'parts = (b"collectives", role.encode(), hello, challenge, binding)',
        'parts = (b"collectives", hello, challenge, binding)',
        "a proof can be sent back to who made it, as one's own",
        ("tests/startup/test_rendezvous.py::test_the_proof_is_bound_to_rank_and_role",),
    ),
    Mutant(
        "secret-of-group",
        "python/collectives/_startup/secrets.py",
        "    if mode & 0o077 & ~allowed:",
        "    if mode & 0o007 & ~allowed:",
        "a file with the token may be readable to its group",
        ("tests/startup/test_token.py::test_a_file_that_others_can_get_at_is_refused",),
    ),
)
