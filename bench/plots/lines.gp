# A line for each block of the data, whose first line is its title: x value low high
# gnuplot -e "data='…'; picture='…'; heading='…'; unit='…'; xunit='…'; rows=…; logarithmic=0 or 1" lines.gp

set terminal svg size 900, 480 font "sans-serif,13" background "white"
set output picture
set title heading
set ylabel unit
set xlabel xunit
set yrange [0:*]
set logscale x 2
if (logarithmic) {
	set logscale x 10
	set autoscale y
	set logscale y 10
}
set grid
set key below
plot for [i = 0:rows - 1] data index i using 1:2:3:4 with yerrorlines linewidth 2 pointtype 7 pointsize 0.5 title columnheader(1)
