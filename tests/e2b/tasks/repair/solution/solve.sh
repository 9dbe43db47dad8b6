#!/bin/bash
set -e
cd /srv/project
sed -i "s/ + 1//" sum.py
