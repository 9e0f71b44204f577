"""How the page of a report looks, in light and in dark."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --text: #1b2430; --soft: #5d6b7c; --line: #e2e7ed;
  --good: #2f9e6e; --retry: #e0a11b; --bad: #d6453d; --idle: #9aa7b5; --sent: #3b6fd4;
  --good-soft: #e3f4ec; --bad-soft: #fbe7e6; --new: #7a4fd0;
  --s0: #3b6fd4; --s1: #2f9e6e; --s2: #e0a11b; --s3: #8b5cd6; --s4: #d6703d; --s5: #2b9db3;
  --s6: #c2478f; --s7: #9aa7b5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #10151c; --card: #18202a; --text: #e4eaf1; --soft: #93a1b2; --line: #2a3542;
    --good: #43b883; --retry: #e5b04a; --bad: #ee6a62; --idle: #6d7b8b; --sent: #6f9bf0;
    --good-soft: #16352a; --bad-soft: #3c2021; --new: #a989ec;
    --s0: #6f9bf0; --s1: #43b883; --s2: #e5b04a; --s3: #a989ec; --s4: #ec9064; --s5: #52bfd3;
    --s6: #e07bb8; --s7: #6d7b8b;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); line-height: 1.45;
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 60px; }
header { display: flex; flex-wrap: wrap; gap: 6px 16px; align-items: baseline; }
h1 { font-size: 25px; margin: 0; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 0 0 2px; }
.soft, .note { color: var(--soft); }
.note { margin: 0 0 12px; font-size: 13.5px; }
.badge { padding: 2px 10px; border-radius: 99px; font-size: 13px; font-weight: 600; }
.badge.good { background: var(--good-soft); color: var(--good); }
.badge.bad { background: var(--bad-soft); color: var(--bad); }
.badge.new { background: var(--new); color: var(--card); font-size: 11px; padding: 1px 8px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(138px, 1fr)); gap: 12px;
  margin: 20px 0; }
@media (min-width: 900px) { .tiles { grid-template-columns: repeat(7, 1fr); } }
.tile, section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.tile { padding: 12px 16px; }
.tile b { display: block; font-size: 23px; font-weight: 650; letter-spacing: -0.02em; }
.tile span { color: var(--soft); font-size: 13px; }
.tile.bad b { color: var(--bad); }
section { padding: 18px 20px; margin: 0 0 16px; min-width: 0; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 0 16px; }
@media (max-width: 900px) { .pair { grid-template-columns: minmax(0, 1fr); } }
.scroll { overflow-x: auto; }
.scroll + .scroll { margin-top: 18px; }
svg.chart { display: block; width: 100%; height: auto; }
svg.wide { min-width: 860px; } svg.narrow { min-width: 440px; }
svg text { fill: var(--soft); font-size: 11.5px; }
.grid { stroke: var(--line); stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.hover { fill: transparent; }
.hover:hover { fill: var(--soft); fill-opacity: 0.09; }
svg.share { display: block; width: 100%; height: 10px; border-radius: 5px;
  background: var(--line); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft);
  margin: 0 0 8px; }
.legend span { display: inline-flex; align-items: center; gap: 6px; overflow-wrap: anywhere; }
.legend svg { width: 11px; height: 11px; flex: none; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px;
  font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 500; white-space: nowrap; }
th, td { padding: 6px 10px; border-bottom: 1px solid var(--line); vertical-align: middle; }
tr:last-child td { border-bottom: 0; }
th.n, td.n { text-align: right; white-space: nowrap; }
td.name { overflow-wrap: anywhere; min-width: 130px; }
td.name small { display: block; color: var(--soft); }
td.wide { min-width: 140px; width: 26%; }
td.bad, b.bad { color: var(--bad); font-weight: 600; }
article { border-top: 1px solid var(--line); padding: 12px 0; }
article:first-of-type { border-top: 0; }
article header { gap: 4px 10px; align-items: center; }
article .count { font-size: 18px; font-weight: 650; min-width: 56px; }
code, pre { font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
code { overflow-wrap: anywhere; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--page); padding: 10px 12px;
  border-radius: 8px; margin: 8px 0 0; max-height: 260px; overflow: auto; }
article p { margin: 6px 0 0; } article p.soft { font-size: 13.5px; overflow-wrap: anywhere; }
.meter { height: 5px; border-radius: 3px; background: var(--line); margin-top: 8px; }
.meter i { display: block; height: 5px; border-radius: 3px; background: var(--bad); }
details summary { cursor: pointer; color: var(--soft); font-size: 13px; margin-top: 6px; }
.empty { color: var(--soft); padding: 18px 0; text-align: center; }
.good { fill: var(--good); } .retry { fill: var(--retry); } .bad { fill: var(--bad); }
.idle { fill: var(--idle); } .sent { fill: var(--sent); }
.s0 { fill: var(--s0); } .s1 { fill: var(--s1); } .s2 { fill: var(--s2); } .s3 { fill: var(--s3); }
.s4 { fill: var(--s4); } .s5 { fill: var(--s5); } .s6 { fill: var(--s6); } .s7 { fill: var(--s7); }
.line.good { fill: none; stroke: var(--good); } .line.retry { fill: none; stroke: var(--retry); }
.line.bad { fill: none; stroke: var(--bad); } .line.sent { fill: none; stroke: var(--sent); }
@media print { section, .tile { break-inside: avoid; } body { background: none; } }
"""
