"""The page's style: light and dark as the reader's system says, and fit to be printed."""

STYLE = """
:root { --ground: #f6f7f9; --card: #fff; --ink: #1c2430; --soft: #667085; --line: #e3e6eb;
  --c0: #2f6fde; --c1: #e07b39; --c2: #2a9d74; --c3: #9a5bc4; --c4: #c9a227; --c5: #d1495b; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171c; --card: #1d2229; --ink: #e6e9ee; --soft: #98a2b3; --line: #303741;
  --c0: #6f9ff5; --c1: #f0a068; --c2: #5cc8a1; --c3: #bd8fe0; --c4: #e0c256; --c5: #ee8190; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { margin: 0 0 4px; font-size: 28px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { margin: 0 0 2px; font-size: 18px; }
h3 { margin: 18px 0 4px; font-size: 14px; }
p { margin: 0 0 10px; }
.soft, .note { color: var(--soft); }
.note { font-size: 13.5px; max-width: 100ch; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 22px 0; }
.tile, section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 12px 16px; }
.tile b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
section { padding: 20px 22px; margin: 0 0 18px; }
svg { display: block; width: 100%; max-width: 900px; height: auto; margin: 6px 0 4px; overflow: visible; }
svg text { font-size: 12px; fill: var(--soft); }
svg .name { text-anchor: end; }
svg .place { text-anchor: middle; }
svg .value { fill: var(--ink); }
.grid { stroke: var(--line); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.ground { opacity: 0.14; stroke: none; }
.hover { fill: transparent; }
.hover:hover { fill: var(--soft); fill-opacity: 0.12; }
.c0 { fill: var(--c0); stroke: none; background: var(--c0); } .c1 { fill: var(--c1); background: var(--c1); }
.c2 { fill: var(--c2); background: var(--c2); }
.c3 { fill: var(--c3); background: var(--c3); } .c4 { fill: var(--c4); background: var(--c4); } .c5 { fill: var(--c5); background: var(--c5); }
.c0.line { stroke: var(--c0); } .c1.line { stroke: var(--c1); } .c2.line { stroke: var(--c2); }
.c3.line { stroke: var(--c3); } .c4.line { stroke: var(--c4); } .c5.line { stroke: var(--c5); }
.line.line { fill: none; }
.legend { font-size: 13px; color: var(--soft); }
.mark { display: inline-block; width: 11px; height: 11px; border-radius: 3px; margin: 0 5px 0 10px; }
.mark:first-child { margin-left: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
td.number, th.number { text-align: right; }
details summary { cursor: pointer; color: var(--soft); font-size: 13.5px; margin-top: 8px; }
@media print { section { break-inside: avoid; } }
"""
