#!/bin/bash
cd /srv/project
if [ "$MODE$LEVEL" = testtwo ] && [ -f /opt/original.py ] && python3 check.py >&2; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
