#!/bin/sh
# Makes everything in assets/demo, in order. Two free CPU cores with AMX: about an hour
# and a half.
#   PYTHON=python3 WORK=target/demo OUT=assets/demo TOKENS=40e6 RANKS=2 sh assets/demo/make/make.sh
set -e
cd "$(dirname "$0")/../../.."
PYTHON=${PYTHON:-python3} WORK=${WORK:-target/demo} OUT=${OUT:-assets/demo}
TOKENS=${TOKENS:-40e6} RANKS=${RANKS:-2}
mkdir -p "$WORK" "$OUT"
export TOKENIZERS_PARALLELISM=true
$PYTHON assets/demo/make/checks.py
$PYTHON assets/demo/make/tokenizer.py --out "$OUT"
$PYTHON assets/demo/make/train.py --out "$OUT" --tokens "$TOKENS" --ranks "$RANKS" --compile
mv "$OUT/train.json" "$WORK/train.json"
$PYTHON assets/demo/make/verify.py --model "$OUT" --work "$WORK"
$PYTHON assets/demo/make/evaluate.py --model "$OUT" --work "$WORK"
$PYTHON assets/demo/make/probe.py --model "$OUT" --work "$WORK"
$PYTHON assets/demo/make/predictor.py --model "$OUT" --work "$WORK"
$PYTHON assets/demo/make/bayes.py --model "$OUT" --work "$WORK"
$PYTHON assets/demo/make/assemble.py --model "$OUT" --work "$WORK"
$PYTHON assets/demo/make/golden.py --model "$OUT"
