# Horizontal bars, a line of the data each: "title" value value-on-top colour
# gnuplot -e "data='…'; picture='…'; heading='…'; unit='…'; rows=…" bars.gp

set terminal svg size 900, 110 + 24 * rows font "sans-serif,13" background "white"
set output picture
set title heading
set xlabel unit
set xrange [0:*]
set yrange [rows - 0.3:-0.7]
set ytics nomirror scale 0
set grid xtics
set key off
plot data using 2:0:(0):2:($0 - 0.36):($0 + 0.36):4:ytic(1) with boxxyerror fill solid 0.9 noborder linecolor rgb variable, \
	data using ($2 + $3):0:2:($2 + $3):($0 - 0.36):($0 + 0.36) with boxxyerror fill solid 0.9 noborder linecolor rgb "#c0392b"
