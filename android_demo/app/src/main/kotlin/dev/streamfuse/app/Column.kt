package dev.streamfuse.app

import android.content.Context
import android.util.AttributeSet
import android.widget.LinearLayout

/** Limits its content to a readable width, and centres it in a wider window. */
class Column(context: Context, attributes: AttributeSet?) : LinearLayout(context, attributes) {
    private val start = paddingStart
    private val end = paddingEnd
    private val widest = (WIDEST_DP * resources.displayMetrics.density).toInt()

    override fun onMeasure(widthMeasureSpec: Int, heightMeasureSpec: Int) {
        val side = maxOf(0, MeasureSpec.getSize(widthMeasureSpec) - widest) / 2
        setPaddingRelative(start + side, paddingTop, end + side, paddingBottom)
        super.onMeasure(widthMeasureSpec, heightMeasureSpec)
    }

    private companion object {
        const val WIDEST_DP = 720
    }
}
