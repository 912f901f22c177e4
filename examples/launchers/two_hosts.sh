#!/bin/bash
# Two hosts by hand, one rank on each: run this on both, with 0 on the first and 1 on the second: bash two_hosts.sh 0
# Before that, once: (umask 077; openssl rand -hex 32 > ~/.token), and copy the file to the other host with scp -p.
export COLLECTIVES_RANK=$1 COLLECTIVES_SIZE=2
export COLLECTIVES_RENDEZVOUS=node1:29400  # a name or an address of the first host, and a port that is free there
export COLLECTIVES_TOKEN_FILE=$HOME/.token
python train.py
