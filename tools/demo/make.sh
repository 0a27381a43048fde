#!/bin/sh
# Makes everything in assets/demo, in order. Two free CPU cores with AMX: about an hour
# and a half.
#   PYTHON=python3 WORK=target/demo OUT=assets/demo TOKENS=40e6 RANKS=2 sh tools/demo/make.sh
set -e
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3} WORK=${WORK:-target/demo} OUT=${OUT:-assets/demo}
TOKENS=${TOKENS:-40e6} RANKS=${RANKS:-2}
mkdir -p "$WORK" "$OUT"
export TOKENIZERS_PARALLELISM=true
$PYTHON tools/demo/checks.py
$PYTHON tools/demo/tokenizer.py --out "$OUT"
$PYTHON tools/demo/train.py --out "$OUT" --tokens "$TOKENS" --ranks "$RANKS" --compile
mv "$OUT/train.json" "$WORK/train.json"
$PYTHON tools/demo/verify.py --model "$OUT" --work "$WORK"
$PYTHON tools/demo/evaluate.py --model "$OUT" --work "$WORK"
$PYTHON tools/demo/probe.py --model "$OUT" --work "$WORK"
$PYTHON tools/demo/predictor.py --model "$OUT" --work "$WORK"
$PYTHON tools/demo/bayes.py --model "$OUT" --work "$WORK"
$PYTHON tools/demo/assemble.py --model "$OUT" --work "$WORK"
