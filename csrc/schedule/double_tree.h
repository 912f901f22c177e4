// Two trees over hosts, each of which carries half of the data: what the algorithms named double_tree have in common.
//
// Both trees are binary. In the first, hosts are numbered in order, so those at odd positions are leaves and those at
// even ones are not. The second numbers them from the other end, or, where their number is odd, one further on: now
// those at even positions are leaves. So no host is an inner node of both. As an inner node it passes half of the data
// on to two others, as a leaf nothing: each port carries no more than all data once in each direction, as in a ring,
// but after log2(h) hops rather than h.
//
// Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/algorithm.h"
#include "schedule/schedule.h"

namespace collectives {

// A node of a binary tree over positions 1 to size whose order from left to right is that of positions. -1: none.
struct InOrderPlace {
  int parent = -1;
  int left = -1;
  int right = -1;
  int depth = 0;  // hops from the root
};
InOrderPlace in_order_place(int position, int size);

// The schedule of this rank for all_reduce (up both trees and down again), reduce (up) or broadcast (down).
//
// Where every host has at least c ranks, the buffer is split into c shares, and the first c ranks of every host carry
// one each, through two trees over the carriers of that share. The other ranks of its host are leaves below a carrier.
// In rooted collectives the root is above both trees, as the only one of its host that is more than a leaf.
//
// Data go in chunks, all trees at once, in rounds. In a round a rank receives one chunk from each neighbour that has
// one for it, reduces, and sends what it has then; what is sent in one round is received two rounds later, so that it
// is on its way while both ranks work on other chunks. A result comes down while other chunks still go up.
Schedule double_tree(const Problem& problem, const Topology& topology, const Limits& limits);

// Predicted time in microseconds.
double cost_of_double_tree(const Problem& problem, const Topology& topology, const CostModel& model);

}  // namespace collectives
